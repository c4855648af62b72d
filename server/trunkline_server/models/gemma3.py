"""Gemma 3, text only (arXiv:2503.19786): five of six layers have a sliding window and their own rotary base.

Compared with Gemma 2, RMSNorm on each query and key head replaces the soft caps. Norm weights are the final multipliers
in both file formats; see `weights/places.py`.
"""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.rope import local_rope, rope


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
    """Grouped-query attention over the layer's window, queries and keys normalised by head, then rotated."""
    name, window = f"model.layers.{layer}.self_attn", config.window(layer)

    def project(x: T, projection: str) -> T:
        bias = f"{name}.{projection}.bias" if config.attention_bias else None
        return ops.linear(x, f"{name}.{projection}.weight", bias)

    query, key, value = project(x, "q_proj"), project(x, "k_proj"), project(x, "v_proj")
    query = ops.head_rms_norm(query, f"{name}.q_norm.weight", config.norm_eps, config.head_size)
    key = ops.head_rms_norm(key, f"{name}.k_norm.weight", config.norm_eps, config.head_size)
    rotary = rope(config) if window is None else local_rope(config)
    query = ops.rope(query, rotary, config.head_size)
    key = ops.rope(key, rotary, config.head_size)
    ops.write_kv(layer, key, value)
    mixed = ops.paged_attention(layer, query, config.attention_scale, window)
    return project(mixed, "o_proj")


def mlp(ops: Ops[T], name: str, x: T) -> T:
    """Gated MLP with GELU."""
    gate = ops.linear(x, f"{name}.gate_proj.weight")
    up = ops.linear(x, f"{name}.up_proj.weight")
    return ops.linear(ops.gelu_mul(gate, up), f"{name}.down_proj.weight")
