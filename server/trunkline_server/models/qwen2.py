"""Qwen2 and Qwen2.5 (arXiv:2407.10671): biases on queries, keys and values only; later layers may have a window."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
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
        x = ops.add(x, mlp(ops, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Grouped-query attention, rotary on queries and keys."""
    name = f"model.layers.{layer}.self_attn"
    query = ops.linear(x, f"{name}.q_proj.weight", f"{name}.q_proj.bias")
    key = ops.linear(x, f"{name}.k_proj.weight", f"{name}.k_proj.bias")
    value = ops.linear(x, f"{name}.v_proj.weight", f"{name}.v_proj.bias")
    rotary = rope(config)
    query = ops.rope(query, rotary, config.head_size)
    key = ops.rope(key, rotary, config.head_size)
    ops.write_kv(layer, key, value)
    mixed = ops.paged_attention(layer, query, config.head_size**-0.5, config.window(layer))
    return ops.linear(mixed, f"{name}.o_proj.weight")


def mlp(ops: Ops[T], name: str, x: T) -> T:
    """Gated MLP with SiLU."""
    gate = ops.linear(x, f"{name}.gate_proj.weight")
    up = ops.linear(x, f"{name}.up_proj.weight")
    return ops.linear(ops.silu_mul(gate, up), f"{name}.down_proj.weight")
