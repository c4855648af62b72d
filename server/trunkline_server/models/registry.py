"""Architectures by the name in the model's own metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trunkline_server.models import (
    cohere2,
    deepseek2,
    exaone4,
    gemma,
    gemma2,
    gemma3,
    glm4,
    granite,
    llama,
    mixtral,
    nemotron,
    olmo2,
    olmoe,
    qwen2,
    qwen2_moe,
    qwen3,
    qwen3_moe,
    starcoder2,
)
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T

# `Callable` cannot bind `T` for each call, so the table is untyped and `forward` restores the type.
ARCHITECTURES: dict[str, Callable[[Any, ModelConfig], Any]] = {
    "cohere": cohere2.forward,
    "cohere2": cohere2.forward,
    "deepseek_v2": deepseek2.forward,
    "deepseek_v3": deepseek2.forward,
    "ernie4_5": llama.forward,
    "exaone": llama.forward,
    "exaone4": exaone4.forward,
    "gemma": gemma.forward,
    "gemma2": gemma2.forward,
    "gemma3_text": gemma3.forward,
    "glm": llama.forward,
    "glm4": glm4.forward,
    "granite": granite.forward,
    "granitemoe": granite.forward,
    "internlm2": llama.forward,
    "internlm3": llama.forward,
    "llama": llama.forward,
    "mistral": llama.forward,
    "mixtral": mixtral.forward,
    "nemotron": nemotron.forward,
    "olmo2": olmo2.forward,
    "olmo3": olmo2.forward,
    "olmoe": olmoe.forward,
    "phi3": llama.forward,
    "qwen2": qwen2.forward,
    "qwen2_moe": qwen2_moe.forward,
    "qwen3": qwen3.forward,
    "qwen3_moe": qwen3_moe.forward,
    "seed_oss": llama.forward,
    "smollm3": llama.forward,
    "starcoder2": starcoder2.forward,
}


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Runs one forward pass of the model that `config` describes. Returns logits [S, V] of the rows that sample."""
    logits: T = ARCHITECTURES[config.architecture](ops, config)
    return logits
