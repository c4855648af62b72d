"""OLMoE (arXiv:2409.02060): experts in each layer, and queries and keys that are normalised over all heads."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.rope import rope


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        x = ops.add(x, attention(ops, config, layer, normed))
        normed = ops.rms_norm(x, f"{name}.post_attention_layernorm.weight", config.norm_eps)
        x = ops.add(x, mixture(ops, config, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Multi-head attention, queries and keys normalised, then rotated."""
    name = f"model.layers.{layer}.self_attn"
    query = ops.rms_norm(ops.linear(x, f"{name}.q_proj.weight"), f"{name}.q_norm.weight", config.norm_eps)
    key = ops.rms_norm(ops.linear(x, f"{name}.k_proj.weight"), f"{name}.k_norm.weight", config.norm_eps)
    value = ops.linear(x, f"{name}.v_proj.weight")
    rotary = rope(config)
    query = ops.rope(query, rotary, config.head_size)
    key = ops.rope(key, rotary, config.head_size)
    ops.write_kv(layer, key, value)
    mixed = ops.paged_attention(layer, query, config.attention_scale)
    return ops.linear(mixed, f"{name}.o_proj.weight")
