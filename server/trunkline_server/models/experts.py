"""Layers of experts, as Mixtral (arXiv:2401.04088) and Qwen's models (arXiv:2505.09388) have them."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Experts, Ops, T


def mixture(ops: Ops[T], config: ModelConfig, name: str, x: T) -> T:
    """Routes each token to some experts and adds their outputs up, [T, N]. name: of the layer's MLP."""
    logits = ops.linear(x, f"{name}.gate.weight")
    return ops.experts(
        x,
        logits,
        Experts(
            gate=names(config, name, "gate_proj"),
            up=names(config, name, "up_proj"),
            down=names(config, name, "down_proj"),
            num_used=config.num_experts_per_token,
            renormalise=config.renormalise_experts,
            sigmoid=config.sigmoid_experts,
            choice_bias=f"{name}.gate.choice.bias" if config.has_choice_bias else None,
            num_groups=config.expert_groups,
            num_used_groups=config.used_expert_groups,
        ),
    )


def names(config: ModelConfig, name: str, projection: str) -> tuple[str, ...]:
    """Returns the names of one projection of all experts."""
    return tuple(f"{name}.experts.{expert}.{projection}.weight" for expert in range(config.num_experts))
