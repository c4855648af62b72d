"""Shapes of a layer of Mamba 2."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.shape_parts import Shapes, scan


def mixer_shapes(config: ModelConfig) -> Shapes:
    recurrent, hidden = config.recurrent, config.hidden_size
    assert recurrent is not None
    heads, inner = recurrent.num_heads, recurrent.num_heads * recurrent.value_size
    return scan(config) | {
        "mixer.in_proj.weight": (inner + recurrent.conv_channels(hidden) + heads, hidden),
        "mixer.skip.weight": (heads,),
        "mixer.norm.weight": (inner,),
    }
