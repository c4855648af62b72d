"""Shapes of a layer with a convolution."""

from __future__ import annotations

from trunkline_server.models.config import ModelConfig
from trunkline_server.models.shape_parts import Shapes, convolution


def mixer_shapes(config: ModelConfig) -> Shapes:
    hidden = config.hidden_size
    projections: Shapes = {"mixer.in_proj.weight": (3 * hidden, hidden), "mixer.out_proj.weight": (hidden, hidden)}
    return convolution(config) | projections
