"""Shapes of parts that several families have."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig

Shapes = dict[str, tuple[int, ...]]


def norm(name: str, config: ModelConfig) -> Shapes:
    kinds = ("weight", "bias") if config.norms.bias else ("weight",)
    return {f"{name}.{kind}": (config.hidden_size,) for kind in kinds}


def with_biases(shapes: Shapes) -> Shapes:
    """Adds a bias for each matrix."""
    return shapes | {f"{name.removesuffix('.weight')}.bias": shape[:1] for name, shape in shapes.items()}


def convolution(config: ModelConfig) -> Shapes:
    """Returns the shapes of a recurrent layer's convolution along the sequence."""
    recurrent = config.recurrent
    assert recurrent is not None
    channels = recurrent.conv_channels(config.hidden_size)
    weight: Shapes = {"mixer.conv.weight": (channels * recurrent.conv_width,)}
    return weight | {"mixer.conv.bias": (channels,)} if recurrent.conv_bias else weight


def scan(config: ModelConfig) -> Shapes:
    """Returns the shapes of a recurrent layer that decays a state, without its projections from the hidden row."""
    recurrent, hidden = config.recurrent, config.hidden_size
    assert recurrent is not None
    heads, inner = recurrent.num_heads, recurrent.num_heads * recurrent.value_size
    scan: Shapes = {"mixer.dt.bias": (heads,), "mixer.rate.weight": (heads,), "mixer.out_proj.weight": (hidden, inner)}
    return convolution(config) | scan
