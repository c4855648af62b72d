"""Rotating heads by positions, and what keys have in common by the first position of their block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunkline_server.models.ops import Rope


def rotate(heads: torch.Tensor, positions: torch.Tensor, rope: Rope, factor: float) -> torch.Tensor:
    """heads [T, heads, D] turned by positions [T], the rotated elements times factor."""
    angles = positions[:, None].float() * torch.tensor(rope.inv_freq)
    cos, sin = (angles.cos() * factor)[:, None], (angles.sin() * factor)[:, None]
    rotated, kept = heads[..., : rope.dim], heads[..., rope.dim :]
    first, second = rotated.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, kept], dim=-1)


@dataclass(frozen=True)
class Turn:
    """How a layer's mean of keys turns: kernels/src/kv_pool/key_turns.rs. rope: None, it does not."""

    positions: torch.Tensor
    block_size: int
    rope: Rope | None

    def to_blocks(self, mean: torch.Tensor) -> torch.Tensor:
        """mean [G, D] of the first block, as it is in that of each position: [T, G, D]."""
        means = mean[None].expand(self.positions.shape[0], -1, -1)
        return means if self.rope is None else rotate(means, self._starts, self.rope, 1.0)

    def to_first(self, keys: torch.Tensor) -> torch.Tensor:
        """keys [T, G, D] turned back from the first position of their block to 0."""
        return keys if self.rope is None else rotate(keys, -self._starts, self.rope, 1.0)

    @property
    def _starts(self) -> torch.Tensor:
        return self.positions // self.block_size * self.block_size
