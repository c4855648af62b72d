"""Architectures by the name in the model's own metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trunkline_server.models import (
    gemma2,
    gemma3,
    llama,
    mixtral,
    olmoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    smollm3,
)
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T

# `Callable` cannot bind `T` for each call, so the table is untyped and `forward` restores the type.
ARCHITECTURES: dict[str, Callable[[Any, ModelConfig], Any]] = {
    "gemma2": gemma2.forward,
    "gemma3_text": gemma3.forward,
    "llama": llama.forward,
    "mistral": llama.forward,
    "mixtral": mixtral.forward,
    "olmoe": olmoe.forward,
    "qwen2": qwen2.forward,
    "qwen2_moe": qwen2_moe.forward,
    "qwen3": qwen3.forward,
    "qwen3_moe": qwen3_moe.forward,
    "smollm3": smollm3.forward,
}


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Runs one forward pass of the model that `config` describes. Returns logits [S, V] of the rows that sample."""
    logits: T = ARCHITECTURES[config.architecture](ops, config)
    return logits
