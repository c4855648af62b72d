"""Granite 4: Granite, where most layers are selective scans (Mamba-2, arXiv:2405.21060) instead of attention."""

from __future__ import annotations

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import RecurrenceOperands, RecurrentOps, T


def forward(ops: RecurrentOps[T], config: ModelConfig) -> T:
    """Returns the hidden rows [T, N]."""
    return decoder.hidden(ops, config, mix, feed)


def mix(ops: RecurrentOps[T], config: ModelConfig, layer: int, x: T) -> T:
    return (scan if config.is_recurrent(layer) else decoder.attention)(ops, config, layer, x)


def feed(ops: RecurrentOps[T], config: ModelConfig, layer: int, x: T) -> T:
    """The MLP, or the expert of all tokens beside those that a token chooses."""
    name = f"model.layers.{layer}.mlp"
    if not config.has_experts(layer):
        return decoder.mlp(ops, config, name, x)
    shared = decoder.shared_expert(ops, config, name, x)
    return ops.add(mixture(ops, config, name, x), shared)


def scan(ops: RecurrentOps[T], config: ModelConfig, layer: int, x: T) -> T:
    """A short convolution, a selective scan with steps that depend on the token, and a gate."""
    name, recurrent = f"model.layers.{layer}.mixer", config.recurrent
    assert recurrent is not None
    inner, key_size = recurrent.num_heads * recurrent.value_size, recurrent.key_size
    channels = inner + 2 * key_size
    joined = ops.linear(x, f"{name}.in_proj.weight")
    gate = ops.columns(joined, 0, inner)
    mixed = ops.columns(joined, inner, inner + channels)
    bias = f"{name}.conv.bias" if recurrent.conv_bias else None
    mixed = ops.silu(ops.short_conv(mixed, f"{name}.conv.weight", bias))
    steps = ops.columns(joined, inner + channels, inner + channels + recurrent.num_heads)
    steps = ops.softplus(steps, f"{name}.dt.bias")
    operands = RecurrenceOperands(
        value=ops.columns(mixed, 0, inner),
        key=ops.columns(mixed, inner, inner + key_size),
        query=ops.columns(mixed, inner + key_size, channels),
        decay=ops.decay(steps, f"{name}.rate.weight"),
        strength=steps,
        skip=f"{name}.skip.weight",
    )
    read = ops.recurrence("scan", operands, recurrent.num_heads, key_size)
    gated = ops.rms_norm(ops.silu_mul(gate, read), f"{name}.norm.weight", config.norms.eps)
    return ops.linear(gated, f"{name}.out_proj.weight")
