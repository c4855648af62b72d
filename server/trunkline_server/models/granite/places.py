"""The names of Granite's weights."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import replace

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import EXPERT, Place, Places, gguf_scan, safetensors_scan

_SHARED = re.compile(r"mlp\.(?:shared_expert\.)?(gate_proj|up_proj|down_proj)")


def _part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    if (expert := EXPERT.fullmatch(module)) is None:
        return None
    return _joined(f"{layer}.block_sparse_moe", expert[2], kind, config.experts.size, int(expert[1]))


def _hybrid_part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    if shared := _SHARED.fullmatch(module):
        size = config.experts.shared_size or config.mlp.size
        return _joined(f"{layer}.shared_mlp", shared[1], kind, size)
    if module.startswith("mixer."):
        return safetensors_scan(f"{layer}.mamba", module, kind)
    return _part(layer, module, kind, config)


def _joined(holder: str, projection: str, kind: str, size: int, index: int | None = None) -> Place:
    """Returns the place of a projection where gate and up are one matrix."""
    if projection == "down_proj":
        return Place(f"{holder}.output_linear.{kind}", index)
    begin = size if projection == "up_proj" else 0
    return Place(f"{holder}.input_linear.{kind}", index, ((begin, begin + size),))


def _gguf_part(layer: str, module: str, kind: str, config: ModelConfig, tensors: Container[str]) -> Place | None:
    return gguf_scan(layer, module, kind) if module.startswith("mixer.") else None


GRANITE_MOE = Places(modules={"mlp.gate": "block_sparse_moe.router.layer"}, part=_part, pairs_neighbours="in GGUF")
GRANITE_HYBRID = replace(GRANITE_MOE, part=_hybrid_part, gguf_part=_gguf_part)
