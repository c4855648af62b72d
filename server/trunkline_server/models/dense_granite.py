"""Granite 3, dense and with experts: Llama with factors for embeddings, scores, the residual and logits."""

from __future__ import annotations

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import Ops, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""

    def add(x: T, y: T) -> T:
        return ops.add(x, ops.scale(y, config.residual_multiplier))

    x = ops.scale(ops.embedding("model.embed_tokens.weight"), config.embedding_multiplier)
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        x = add(x, decoder.attention(ops, config, layer, normed))
        normed = ops.rms_norm(x, f"{name}.post_attention_layernorm.weight", config.norm_eps)
        if config.has_experts(layer):
            x = add(x, mixture(ops, config, f"{name}.mlp", normed))
        else:
            x = add(x, decoder.mlp(ops, config, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(ops.scale(x, config.logit_multiplier), "lm_head.weight")
