"""StarCoder2 (arXiv:2402.19173): layer norms, biases everywhere, and an MLP without a gate."""

from __future__ import annotations

from collections.abc import Callable

from trunkline_server.models import decoder
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    return decode(ops, config, ops.gelu)


def decode(ops: Ops[T], config: ModelConfig, activation: Callable[[T], T]) -> T:
    """Returns logits [S, V] of the rows that sample. activation: of the MLP."""

    def norm(x: T, name: str) -> T:
        return ops.layer_norm(x, f"{name}.weight", f"{name}.bias", config.norm_eps)

    x = ops.embedding("model.embed_tokens.weight")
    for layer in range(config.num_layers):
        name = f"model.layers.{layer}"
        normed = norm(x, f"{name}.input_layernorm")
        x = ops.add(x, decoder.attention(ops, config, layer, normed))
        normed = norm(x, f"{name}.post_attention_layernorm")
        inner = activation(project(ops, config, f"{name}.mlp.up_proj", normed))
        x = ops.add(x, project(ops, config, f"{name}.mlp.down_proj", inner))
    return ops.logits(norm(x, "model.norm"), "lm_head.weight")


def project(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """One of the MLP's projections."""
    return ops.linear(x, f"{name}.weight", f"{name}.bias" if config.mlp_bias else None)
