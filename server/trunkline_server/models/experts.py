"""Layers of experts, as Mixtral (arXiv:2401.04088), Qwen's models (arXiv:2505.09388) and GPT-OSS have them."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Experts, Ops, T

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


def mixture(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """Routes each token to some experts and adds their outputs up, [T, N]. name: of the layer's MLP."""
    logits = ops.linear(x, f"{name}.gate.weight", f"{name}.gate.bias" if config.experts.bias else None)
    gate, up, down = (names(config, name, f"{projection}.weight") for projection in _PROJECTIONS)
    gate_bias, up_bias, down_bias = (names(config, name, f"{projection}.bias") for projection in _PROJECTIONS)
    return ops.experts(
        x,
        logits,
        Experts(
            gate=gate,
            up=up,
            down=down,
            biases=(gate_bias, up_bias, down_bias) if config.experts.bias else None,
            activation=config.experts.activation,
            num_used=config.experts.num_used,
            renormalise=config.experts.renormalise,
            sigmoid=config.experts.sigmoid,
            choice_bias=f"{name}.gate.choice.bias" if config.experts.has_choice_bias else None,
            num_groups=config.experts.num_groups,
            num_used_groups=config.experts.num_used_groups,
        ),
    )


def names(config: ModelConfig, name: str, weight: str) -> tuple[str, ...]:
    """Returns the names of the same weight of all experts."""
    return tuple(f"{name}.experts.{expert}.{weight}" for expert in range(config.experts.num_experts))
