"""Qwen3-Next: three of four layers follow the gated delta rule (arXiv:2412.06464); the others attend, with a gate."""

from __future__ import annotations

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import RecurrenceOperands, RecurrentOps, T

_L2_EPS = 1e-6


def forward(ops: RecurrentOps[T], config: ModelConfig) -> T:
    """Returns the hidden rows [T, N]."""
    return decoder.hidden(ops, config, mix, decoder.feed)


def mix(ops: RecurrentOps[T], config: ModelConfig, layer: int, x: T) -> T:
    return (delta_rule if config.is_recurrent(layer) else gated_attention)(ops, config, layer, x)


def gated_attention(ops: RecurrentOps[T], config: ModelConfig, layer: int, x: T) -> T:
    """Qwen3's attention, whose results pass a gate before the output projection."""
    name = f"model.layers.{layer}.self_attn"
    gate = ops.sigmoid(ops.linear(x, f"{name}.gate_proj.weight"))
    return ops.linear(ops.mul(decoder.attend(ops, config, layer, x), gate), f"{name}.o_proj.weight")


def delta_rule(ops: RecurrentOps[T], config: ModelConfig, layer: int, x: T) -> T:
    """Queries, keys and values pass a short convolution; keys then replace what the state has for them."""
    name, recurrent = f"model.layers.{layer}.mixer", config.recurrent
    assert recurrent is not None
    keys, values = recurrent.num_keys * recurrent.key_size, recurrent.num_heads * recurrent.value_size
    mixed = ops.silu(ops.short_conv(ops.linear(x, f"{name}.qkv_proj.weight"), f"{name}.conv.weight"))

    def normed(begin: int) -> T:
        return ops.head_l2_norm(ops.columns(mixed, begin, begin + keys), _L2_EPS, recurrent.key_size)

    steps = ops.softplus(ops.linear(x, f"{name}.step_proj.weight"), f"{name}.dt.bias")
    operands = RecurrenceOperands(
        value=ops.columns(mixed, 2 * keys, 2 * keys + values),
        key=normed(keys),
        query=ops.scale(normed(0), recurrent.key_size**-0.5),
        decay=ops.decay(steps, f"{name}.rate.weight"),
        strength=ops.sigmoid(ops.linear(x, f"{name}.strength_proj.weight")),
    )
    read = ops.recurrence("delta", operands, recurrent.num_heads, recurrent.key_size)
    read = ops.head_rms_norm(read, f"{name}.norm.weight", config.norms.eps, recurrent.value_size)
    gate = ops.linear(x, f"{name}.gate_proj.weight")
    return ops.linear(ops.silu_mul(gate, read), f"{name}.out_proj.weight")
