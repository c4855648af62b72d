"""Gemma (arXiv:2403.08295): scaled embeddings, and a gated MLP with GELU.

Norm weights are the final multipliers in both file formats; see `weights/places.py`.
"""

from __future__ import annotations

from trunkline_server.models import decoder, gemma2
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.scale(ops.embedding("model.embed_tokens.weight"), config.hidden_size**0.5)
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        x = ops.add(x, decoder.attention(ops, config, layer, normed))
        normed = ops.rms_norm(x, f"{name}.post_attention_layernorm.weight", config.norm_eps)
        x = ops.add(x, gemma2.mlp(ops, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")
