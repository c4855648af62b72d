"""Qwen3 with experts (arXiv:2505.09388). Some layers may have an ordinary MLP instead."""

from __future__ import annotations

from trunkline_server.models import qwen3
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import Ops, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        x = ops.add(x, qwen3.attention(ops, config, layer, normed))
        normed = ops.rms_norm(x, f"{name}.post_attention_layernorm.weight", config.norm_eps)
        if config.has_experts(layer):
            x = ops.add(x, mixture(ops, config, f"{name}.mlp", normed))
        else:
            x = ops.add(x, qwen3.mlp(ops, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")
