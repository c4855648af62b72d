"""GLM-4-0414: norms before and behind attention and MLP, and half of each head rotated."""

from __future__ import annotations

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        mixed = decoder.attention(ops, config, layer, normed)
        x = ops.add(x, ops.rms_norm(mixed, f"{name}.post_attention_layernorm.weight", config.norm_eps))
        normed = ops.rms_norm(x, f"{name}.pre_feedforward_layernorm.weight", config.norm_eps)
        inner = decoder.mlp(ops, config, f"{name}.mlp", normed)
        x = ops.add(x, ops.rms_norm(inner, f"{name}.post_feedforward_layernorm.weight", config.norm_eps))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")
