"""Qwen3, dense (arXiv:2505.09388): RMSNorm on each query and key head before the rotation."""

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
    """Grouped-query attention, queries and keys normalised by head, then rotated."""
    name = f"model.layers.{layer}.self_attn.o_proj"
    bias = f"{name}.bias" if config.attention_output_bias else None
    return ops.linear(attend(ops, config, layer, x), f"{name}.weight", bias)


def attend(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Returns what the heads read, before the output projection."""
    name = f"model.layers.{layer}.self_attn"

    def project(projection: str) -> T:
        bias = f"{name}.{projection}.bias" if config.attention_bias else None
        return ops.linear(x, f"{name}.{projection}.weight", bias)

    query, key, value = project("q_proj"), project("k_proj"), project("v_proj")
    query = ops.head_rms_norm(query, f"{name}.q_norm.weight", config.norm_eps, config.head_size)
    key = ops.head_rms_norm(key, f"{name}.k_norm.weight", config.norm_eps, config.head_size)
    rotary = rope(config)
    query = ops.rope(query, rotary, config.head_size)
    key = ops.rope(key, rotary, config.head_size)
    kv_layer = config.kv_layer(layer)
    ops.write_kv(kv_layer, key, value)
    return ops.paged_attention(kv_layer, query, config.head_size**-0.5, config.window(layer))


def mlp(ops: Ops[T], name: str, x: T) -> T:
    """Gated MLP with SiLU."""
    gate = ops.linear(x, f"{name}.gate_proj.weight")
    up = ops.linear(x, f"{name}.up_proj.weight")
    return ops.linear(ops.silu_mul(gate, up), f"{name}.down_proj.weight")
