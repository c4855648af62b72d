"""EXAONE 4 (arXiv:2507.11407): norms behind attention and MLP; if it has windows, only layers with one rotate."""

from __future__ import annotations

from trunkline_server.models import qwen2
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.rope import rope


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        mixed = attention(ops, config, layer, x)
        x = ops.add(x, ops.rms_norm(mixed, f"{name}.post_attention_layernorm.weight", config.norm_eps))
        inner = qwen2.mlp(ops, f"{name}.mlp", x)
        x = ops.add(x, ops.rms_norm(inner, f"{name}.post_feedforward_layernorm.weight", config.norm_eps))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Grouped-query attention over the layer's window, queries and keys normalised by head."""
    name = f"model.layers.{layer}.self_attn"
    query, key = ops.linear(x, f"{name}.q_proj.weight"), ops.linear(x, f"{name}.k_proj.weight")
    value = ops.linear(x, f"{name}.v_proj.weight")
    query = ops.head_rms_norm(query, f"{name}.q_norm.weight", config.norm_eps, config.head_size)
    key = ops.head_rms_norm(key, f"{name}.k_norm.weight", config.norm_eps, config.head_size)
    if config.rope_layers[layer]:
        rotary = rope(config)
        query = ops.rope(query, rotary, config.head_size)
        key = ops.rope(key, rotary, config.head_size)
    ops.write_kv(layer, key, value)
    mixed = ops.paged_attention(layer, query, config.attention_scale, config.window(layer))
    return ops.linear(mixed, f"{name}.o_proj.weight")
