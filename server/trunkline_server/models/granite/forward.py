"""Granite 4: Granite, where most layers are selective scans (Mamba-2, arXiv:2405.21060) instead of attention."""

from __future__ import annotations

from trunkline_server.models import decoder, qwen3
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import RecurrenceOperands, RecurrentOps, T


def forward(ops: RecurrentOps[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""

    def add(x: T, y: T) -> T:
        return ops.add(x, ops.scale(y, config.residual_multiplier))

    x = ops.scale(ops.embedding("model.embed_tokens.weight"), config.embedding_multiplier)
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = ops.rms_norm(x, f"{name}.input_layernorm.weight", config.norm_eps)
        if config.is_recurrent(layer):
            x = add(x, scan(ops, config, f"{name}.mixer", normed))
        else:
            x = add(x, decoder.attention(ops, config, layer, normed))
        normed = ops.rms_norm(x, f"{name}.post_attention_layernorm.weight", config.norm_eps)
        if config.has_experts(layer):
            shared = qwen3.mlp(ops, f"{name}.mlp.shared_expert", normed)
            x = add(x, ops.add(mixture(ops, config, f"{name}.mlp", normed), shared))
        else:
            x = add(x, decoder.mlp(ops, config, f"{name}.mlp", normed))
    x = ops.rms_norm(x, "model.norm.weight", config.norm_eps)
    return ops.logits(ops.scale(x, config.logit_multiplier), "lm_head.weight")


def scan(ops: RecurrentOps[T], config: ModelConfig, name: str, x: T) -> T:
    """A short convolution, a selective scan with steps that depend on the token, and a gate."""
    recurrent = config.recurrent
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
    gated = ops.rms_norm(ops.silu_mul(gate, read), f"{name}.norm.weight", config.norm_eps)
    return ops.linear(gated, f"{name}.out_proj.weight")
