"""The names of Phi-3's weights."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import (
    QUERY_KEY_VALUE,
    Place,
    Places,
    gguf_joined_gate_and_up,
    joined_gate_and_up,
    joined_rows,
)


def _part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    if module in QUERY_KEY_VALUE:
        return Place(f"{layer}.self_attn.qkv_proj.{kind}", rows=joined_rows(config, module))
    return joined_gate_and_up(layer, module, kind, config)


PHI3 = Places(part=_part, gguf_part=gguf_joined_gate_and_up)
