"""The decoder that most architectures are: Llama 2 and 3 (arXiv:2307.09288, arXiv:2407.21783), and what a config adds.

A family whose layers differ in more than their config passes functions of its own to `hidden`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.experts import mixture
from trunkline_server.models.ops import Ops, Scores, T
from trunkline_server.models.rope import layer_rope

# A part of a layer: (ops, config, layer, x [T, N]) to what it adds to the residual, [T, N].
Part = Callable[[Any, ModelConfig, int, T], T]


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns the hidden rows [T, N] behind the last norm."""
    return hidden(ops, config, attention, feed)


def hidden(ops: Ops[T], config: ModelConfig, mix: Part[T], feed: Part[T]) -> T:
    """Returns the hidden rows [T, N] of a decoder. mix: attention, or what replaces it; feed: MLP or experts."""
    norms = config.norms.layer

    def normed(x: T, layer: int, name: str | None) -> T:
        return x if name is None else norm(ops, config, f"model.layers.{layer}.{name}", x)

    def add(x: T, y: T) -> T:
        return ops.add(x, scaled(ops, y, config.residual_multiplier))

    x = scaled(ops, ops.embedding("model.embed_tokens.weight"), config.embedding_multiplier)
    for layer in range(config.num_layers):
        source = normed(x, layer, norms.before_attention)
        x = add(x, normed(mix(ops, config, layer, source), layer, norms.after_attention))
        source = source if norms.are_shared else normed(x, layer, norms.before_mlp)
        x = add(x, normed(feed(ops, config, layer, source), layer, norms.after_mlp))
    return norm(ops, config, "model.norm", x)


def attention(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Grouped-query attention with its output projection."""
    name = f"model.layers.{layer}.self_attn.o_proj"
    return project(ops, name, attend(ops, config, layer, x), config.attention.output_bias)


def attend(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """Returns what the heads read, before the output projection."""
    name = f"model.layers.{layer}.self_attn"
    query, key, value = (project(ops, f"{name}.{part}_proj", x, config.attention.bias) for part in "qkv")
    if config.attention.query_key_norm:
        query, key = (head_norm(ops, config, f"{name}.{part}_norm", x) for part, x in (("q", query), ("k", key)))
    if config.positions.rotated_layers[layer]:
        rotary = layer_rope(config, layer)
        query, key = ops.rope(query, rotary, config.head_size), ops.rope(key, rotary, config.head_size)
    kv_layer = config.kv_layer(layer)
    ops.write_kv(kv_layer, key, value)
    sinks = f"{name}.sinks.weight" if config.attention.has_sinks else None
    window, soft_cap = config.window(layer), config.attention.soft_cap
    return ops.paged_attention(kv_layer, query, Scores(config.attention_scale, window, soft_cap, sinks))


def feed(ops: Ops[T], config: ModelConfig, layer: int, x: T) -> T:
    """The layer's MLP, or the experts that each token chooses with the expert of all tokens, if there is one."""
    name = f"model.layers.{layer}.mlp"
    if not config.has_experts(layer):
        return mlp(ops, config, name, x)
    multiplier = config.experts.multiplier
    mixed = scaled(ops, mixture(ops, config, name, x), None if multiplier == 1.0 else multiplier)
    return ops.add(mixed, shared_expert(ops, config, name, x)) if config.experts.shared_size else mixed


def shared_expert(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """The expert of all tokens, scaled by its gate if it has one."""
    if not config.experts.has_shared_gate:
        return mlp(ops, config, f"{name}.shared_expert", x)
    gate = ops.linear(x, f"{name}.shared_expert_gate.weight")
    return ops.sigmoid_scale(mlp(ops, config, f"{name}.shared_expert", x), gate)


def mlp(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """An MLP, with or without a gate."""
    if config.mlp.is_gated:
        multiply = {"silu": ops.silu_mul, "gelu": ops.gelu_mul}[config.mlp.activation]
        gate, up = (project(ops, f"{name}.{part}_proj", x, config.mlp.bias) for part in ("gate", "up"))
        inner = multiply(gate, up)
    else:
        activate = {"gelu": ops.gelu, "relu_squared": ops.relu_squared}[config.mlp.activation]
        inner = activate(project(ops, f"{name}.up_proj", x, config.mlp.bias))
    return project(ops, f"{name}.down_proj", inner, config.mlp.bias)


def norm(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    if config.norms.are_layer_norms:
        return ops.layer_norm(x, f"{name}.weight", f"{name}.bias" if config.norms.bias else None, config.norms.eps)
    return ops.rms_norm(x, f"{name}.weight", config.norms.eps)


def head_norm(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """The norm of queries or keys: of each head by itself, or of all heads together."""
    if config.attention.wide_query_key_norm:
        return ops.rms_norm(x, f"{name}.weight", config.norms.eps)
    return ops.head_rms_norm(x, f"{name}.weight", config.norms.eps, config.head_size)


def project(ops: Ops[T], name: str, x: T, bias: bool) -> T:
    return ops.linear(x, f"{name}.weight", f"{name}.bias" if bias else None)


def scaled(ops: Ops[T], x: T, factor: float | None) -> T:
    return x if factor is None else ops.scale(x, factor)
