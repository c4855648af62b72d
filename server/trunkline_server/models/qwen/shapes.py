"""Shapes of a layer of the gated delta rule."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.shape_parts import Shapes, scan


def mixer_shapes(config: ModelConfig) -> Shapes:
    recurrent, hidden = config.recurrent, config.hidden_size
    assert recurrent is not None
    heads = recurrent.num_heads
    return scan(config) | {
        "mixer.qkv_proj.weight": (recurrent.conv_channels(hidden), hidden),
        "mixer.gate_proj.weight": (heads * recurrent.value_size, hidden),
        "mixer.strength_proj.weight": (heads, hidden),
        "mixer.step_proj.weight": (heads, hidden),
        "mixer.norm.weight": (recurrent.value_size,),
    }
