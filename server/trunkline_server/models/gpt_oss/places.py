"""The names of GPT-OSS's weights."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import EXPERT, Place, Places


def _part(layer: str, module: str, kind: str, config: ModelConfig) -> Place | None:
    if module == "self_attn.sinks":
        return Place(f"{layer}.self_attn.sinks")
    if (expert := EXPERT.fullmatch(module)) is None:
        return None
    is_matrix, index, projection = kind == "weight", int(expert[1]), expert[2]
    suffix = "" if is_matrix else "_bias"
    if projection == "down_proj":
        return Place(f"{layer}.mlp.experts.down_proj{suffix}", index, is_transposed=is_matrix)
    # Rows of gate and up take turns.
    first, end = int(projection == "up_proj"), 2 * config.experts.size
    tensor = f"{layer}.mlp.experts.gate_up_proj{suffix}"
    return Place(tensor, index, ((first, end),), step=2, is_transposed=is_matrix)


GPT_OSS = Places(
    modules={"mlp.gate": "mlp.router"},
    part=_part,
    gguf_modules={"post_attention_layernorm": "post_attention_norm"},
)
