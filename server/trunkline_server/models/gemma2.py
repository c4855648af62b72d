"""Gemma 2 (arXiv:2408.00118): every other layer has a sliding window; soft caps on scores and logits.

Norm weights are the final multipliers in both file formats; see `weights/places.py`.
"""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.rope import rope


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.scale(ops.embedding("model.embed_tokens.weight"), config.hidden_size**0.5)
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        mixed = attention(ops, config, layer, normed)
        x = ops.add(x, ops.rms_norm(mixed, f"{name}.post_attention_layernorm.weight", config.norm_eps))
        normed = ops.rms_norm(x, f"{name}.pre_feedforward_layernorm.weight", config.norm_eps)
        inner = mlp(ops, f"{name}.mlp", normed)
        x = ops.add(x, ops.rms_norm(inner, f"{name}.post_feedforward_layernorm.weight", config.norm_eps))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight", config.logit_soft_cap)


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Grouped-query attention, rotary on queries and keys, over the layer's window, with a soft cap."""
    name = f"model.layers.{layer}.self_attn"

    def project(x: T, projection: str) -> T:
        bias = f"{name}.{projection}.bias" if config.attention_bias else None
        return ops.linear(x, f"{name}.{projection}.weight", bias)

    query, key, value = project(x, "q_proj"), project(x, "k_proj"), project(x, "v_proj")
    rotary = rope(config)
    query = ops.rope(query, rotary, config.head_size)
    key = ops.rope(key, rotary, config.head_size)
    ops.write_kv(layer, key, value)
    window, soft_cap = config.window(layer), config.attention_soft_cap
    mixed = ops.paged_attention(layer, query, config.attention_scale, window, soft_cap)
    return project(mixed, "o_proj")


def mlp(ops: Ops[T], name: str, x: T) -> T:
    """Gated MLP with GELU."""
    gate = ops.linear(x, f"{name}.gate_proj.weight")
    up = ops.linear(x, f"{name}.up_proj.weight")
    return ops.linear(ops.gelu_mul(gate, up), f"{name}.down_proj.weight")
