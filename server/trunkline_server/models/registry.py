"""Architectures by the name in the model's own metadata."""

from __future__ import annotations

from importlib import import_module

from trunkline_server.models.architecture import Architecture
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.head import finish
from trunkline_server.models.ops import Ops, T

# The folder of each family. The names that it declares are those of `model_type` in `config.json`.
FAMILIES = (
    "bert",
    "cohere",
    "deepseek",
    "exaone",
    "gemma",
    "glm",
    "gpt_oss",
    "granite",
    "internlm",
    "lfm",
    "llama",
    "modernbert",
    "nemotron",
    "olmo",
    "phi",
    "qwen",
    "starcoder",
)
ARCHITECTURES: dict[str, Architecture] = {
    name: architecture
    for family in FAMILIES
    for name, architecture in import_module(f"trunkline_server.models.{family}.config").ARCHITECTURES.items()
}
ENCODERS = tuple(sorted(name for name, architecture in ARCHITECTURES.items() if architecture.encoder is not None))
SUPPORTED = tuple(sorted(ARCHITECTURES))


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Runs one forward pass of the model that `config` describes. Returns logits [S, V] of the rows that sample.

    A model without an output head has the result of `Ops.pooled` instead.
    """
    architecture = ARCHITECTURES[config.architecture]
    hidden: T = architecture.forward(ops, config)
    return finish(ops, config, hidden, architecture.classifier)
