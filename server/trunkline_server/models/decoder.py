"""Llama 2 and 3 (arXiv:2307.09288, arXiv:2407.21783), and models that differ from them in their config alone.

Mistral (arXiv:2310.06825) may have a sliding window. Some layers of SmolLM3, by default every fourth, do not rotate
(arXiv:2501.18795). Phi-3 (arXiv:2404.14219), GLM-4, ERNIE 4.5, InternLM, EXAONE 3, Seed-OSS and SmolLM2 differ in
biases, in the part of heads that is rotated, or in names and order in files (`weights/places.py`).
"""

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
        x = ops.add(x, mlp(ops, config, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Grouped-query attention, rotary on queries and keys where the layer has positions."""
    name = f"model.layers.{layer}.self_attn"

    def project(x: T, projection: str, bias: bool) -> T:
        return ops.linear(x, f"{name}.{projection}.weight", f"{name}.{projection}.bias" if bias else None)

    query = project(x, "q_proj", config.attention_bias)
    key = project(x, "k_proj", config.attention_bias)
    value = project(x, "v_proj", config.attention_bias)
    if config.rope_layers[layer]:
        rotary = rope(config)
        query = ops.rope(query, rotary, config.head_size)
        key = ops.rope(key, rotary, config.head_size)
    kv_layer = config.kv_layer(layer)
    ops.write_kv(kv_layer, key, value)
    mixed = ops.paged_attention(kv_layer, query, config.attention_scale, config.window(layer))
    return project(mixed, "o_proj", config.attention_output_bias)


def mlp(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """Gated MLP with SiLU."""

    def project(x: T, projection: str) -> T:
        return ops.linear(x, f"{name}.{projection}.weight", f"{name}.{projection}.bias" if config.mlp_bias else None)

    return project(ops.silu_mul(project(x, "gate_proj"), project(x, "up_proj")), "down_proj")
