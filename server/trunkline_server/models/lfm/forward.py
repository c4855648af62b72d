"""LFM2 (arXiv:2511.23404): most layers convolve over a few positions between two gates; the others attend."""

from __future__ import annotations

from trunkline_server.models import decoder, qwen3
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import RecurrentOps, T


def forward(ops: RecurrentOps[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        if config.is_recurrent(layer):
            x = ops.add(x, convolution(ops, config, f"{name}.mixer", normed))
        else:
            x = ops.add(x, qwen3.attention(ops, config, layer, normed))
        normed = ops.rms_norm(x, f"{name}.post_attention_layernorm.weight", config.norm_eps)
        if config.has_experts(layer):
            mixed = mixture(ops, config, f"{name}.mlp", normed)
            x = ops.add(x, ops.scale(mixed, config.expert_multiplier) if config.expert_multiplier != 1.0 else mixed)
        else:
            x = ops.add(x, decoder.mlp(ops, config, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(x, "lm_head.weight")


def convolution(ops: RecurrentOps[T], config: ModelConfig, name: str, x: T) -> T:
    """Gates the inputs of a short convolution, and its results."""
    size = config.hidden_size
    joined = ops.linear(x, f"{name}.in_proj.weight")
    before, after, x = (ops.columns(joined, part * size, (part + 1) * size) for part in range(3))
    mixed = ops.short_conv(ops.mul(before, x), f"{name}.conv.weight")
    return ops.linear(ops.mul(after, mixed), f"{name}.out_proj.weight")
