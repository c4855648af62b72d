"""Nemotron-4 and Minitron (arXiv:2402.16819, arXiv:2407.14679): StarCoder2's layers, with a squared ReLU.

Half of each head is rotated. Norm weights are the final multipliers in both file formats; see `weights/places.py`.
"""

from __future__ import annotations

from trunkline_server.models import starcoder2
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.ops import Ops, T


def forward(ops: Ops[T], config: ModelConfig) -> T:
    """Returns logits [S, V] of the rows that sample."""
    return starcoder2.decode(ops, config, ops.relu_squared)
