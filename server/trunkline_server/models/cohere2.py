"""Command R and Command R7B: attention and MLP side by side behind one layer norm without a bias.

In Command R7B, layers with a window rotate, and the others, which see everything, do not.
"""

from __future__ import annotations

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.layer_norm(x, f"{name}.input_layernorm.weight", None, config.norm_eps)
        mixed = decoder.attention(ops, config, layer, normed)
        x = ops.add(ops.add(x, mixed), decoder.mlp(ops, config, f"{name}.mlp", normed))
    x = ops.layer_norm(x, "model.norm.weight", None, config.norm_eps)
    return ops.logits(ops.scale(x, config.logit_multiplier), "lm_head.weight")
