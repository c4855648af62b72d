"""Architectures by the name in the model's own metadata."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from trunkline_server.models import (
    cohere2,
    decoder,
    dense_granite,
    exaone4,
    gemma,
    gemma2,
    gemma3,
    glm4,
    gpt_oss,
    head,
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
from trunkline_server.models.bert import forward as bert
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.deepseek import forward as deepseek
from trunkline_server.models.granite import forward as granite
from trunkline_server.models.lfm import forward as lfm
from trunkline_server.models.modernbert import forward as modernbert
from trunkline_server.models.ops import Ops, T
from trunkline_server.models.qwen import forward as qwen

# `Callable` cannot bind `T` for each call, so the table is untyped and `forward` restores the type.
ARCHITECTURES: dict[str, Callable[[Any, ModelConfig], Any]] = {
    "bert": bert.forward,
    "camembert": bert.forward,
    "cohere": cohere2.forward,
    "cohere2": cohere2.forward,
    "deepseek_v2": deepseek.forward,
    "deepseek_v3": deepseek.forward,
    "ernie4_5": decoder.forward,
    "exaone": decoder.forward,
    "exaone4": exaone4.forward,
    "gemma": gemma.forward,
    "gemma2": gemma2.forward,
    "gemma3_text": gemma3.forward,
    "glm": decoder.forward,
    "glm4": glm4.forward,
    "gpt_oss": gpt_oss.forward,
    "granite": dense_granite.forward,
    "granitemoe": dense_granite.forward,
    "granitemoehybrid": granite.forward,
    "internlm2": decoder.forward,
    "internlm3": decoder.forward,
    "lfm2": lfm.forward,
    "lfm2_moe": lfm.forward,
    "llama": decoder.forward,
    "mistral": decoder.forward,
    "mixtral": mixtral.forward,
    "modernbert": modernbert.forward,
    "nemotron": nemotron.forward,
    "olmo2": olmo2.forward,
    "olmo3": olmo2.forward,
    "olmoe": olmoe.forward,
    "phi3": decoder.forward,
    "qwen2": qwen2.forward,
    "qwen2_moe": qwen2_moe.forward,
    "qwen3": qwen3.forward,
    "qwen3_moe": qwen3_moe.forward,
    "qwen3_next": qwen.forward,
    "roberta": bert.forward,
    "seed_oss": decoder.forward,
    "smollm3": decoder.forward,
    "starcoder2": starcoder2.forward,
    "xlm-roberta": bert.forward,
}


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Runs one forward pass of the model that `config` describes. Returns logits [S, V] of the rows that sample.

    A model without an output head has the result of `Ops.pooled` instead.
    """
    output: T = ARCHITECTURES[config.architecture](ops if config.pooling is None else _PoolingOps(ops, config), config)
    return output


class _PoolingOps(Generic[T]):
    """Passes the output of a model to `Ops.pooled`, before the output head or instead of it."""

    def __init__(self, ops: Ops[T], config: ModelConfig) -> None:
        self._ops = ops
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ops, name)

    def logits(self, x: T, weight: str, soft_cap: float | None = None) -> T:
        pooling = self._config.pooling
        assert pooling is not None, "the model makes vectors"
        if pooling.labels:
            rows = self._ops.pooled(self._ops.linear(x, "score.weight"), pooling.kind)
        else:
            rows = head.embedding(self._ops, self._config, x)
        return self._ops.logits(x, weight, soft_cap) if self._config.has_output_head else rows
