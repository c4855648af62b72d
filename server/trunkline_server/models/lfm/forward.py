"""LFM2 (arXiv:2511.23404): most layers convolve over a few positions between two gates; the others attend."""

from __future__ import annotations

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import RecurrentOps, T


def forward(ops: RecurrentOps[T], config: ModelConfig) -> T:
    """Returns the hidden rows [T, N]."""
    return decoder.hidden(ops, config, mix, decoder.feed)


def mix(ops: RecurrentOps[T], config: ModelConfig, layer: int, x: T) -> T:
    return (convolution if config.is_recurrent(layer) else decoder.attention)(ops, config, layer, x)


def convolution(ops: RecurrentOps[T], config: ModelConfig, layer: int, x: T) -> T:
    """Gates the inputs of a short convolution, and its results."""
    name, size = f"model.layers.{layer}.mixer", config.hidden_size
    joined = ops.linear(x, f"{name}.in_proj.weight")
    before, after, x = (ops.columns(joined, part * size, (part + 1) * size) for part in range(3))
    mixed = ops.short_conv(ops.mul(before, x), f"{name}.conv.weight")
    return ops.linear(ops.mul(after, mixed), f"{name}.out_proj.weight")
