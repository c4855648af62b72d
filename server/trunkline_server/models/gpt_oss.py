"""GPT-OSS (arXiv:2508.10925): experts, biases everywhere, attention sinks, and a window in every other layer."""

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
    """Grouped-query attention with a sink in each head, rotary on queries and keys."""
    name = f"model.layers.{layer}.self_attn"

    def linear(x: T, projection: str) -> T:
        bias = f"{name}.{projection}.bias" if config.attention_bias else None
        return ops.linear(x, f"{name}.{projection}.weight", bias)

    rotary = rope(config)
    query = ops.rope(linear(x, "q_proj"), rotary, config.head_size)
    key = ops.rope(linear(x, "k_proj"), rotary, config.head_size)
    ops.write_kv(layer, key, linear(x, "v_proj"))
    mixed = ops.paged_attention(
        layer, query, config.attention_scale, config.window(layer), sinks=f"{name}.sinks.weight"
    )
    return linear(mixed, "o_proj")
