"""The names of Mixtral's experts in safetensors."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import EXPERT, Place, Places

_PROJECTIONS = {"gate_proj": "w1", "up_proj": "w3", "down_proj": "w2"}


def _part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    if (expert := EXPERT.fullmatch(module)) is None:
        return None
    return Place(f"{layer}.block_sparse_moe.experts.{expert[1]}.{_PROJECTIONS[expert[2]]}.{kind}")


MIXTRAL = Places(modules={"mlp.gate": "block_sparse_moe.gate"}, part=_part, pairs_neighbours="in GGUF")
