"""Rotates heads by positions, and int4's key means by the first position of their block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunkline_server.models.ops import Rope


def rotate(heads: torch.Tensor, positions: torch.Tensor, rope: Rope, factor: float) -> torch.Tensor:
    """Rotates heads [T, heads, D] by positions [T] and multiplies the rotated elements by `factor`."""
    angles = positions[:, None].float() * torch.tensor(rope.inv_freq)
    cos, sin = (angles.cos() * factor)[:, None], (angles.sin() * factor)[:, None]
    rotated, kept = heads[..., : rope.dim], heads[..., rope.dim :]
    first, second = rotated.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, kept], dim=-1)


@dataclass(frozen=True)
class Turn:
    """The rotation of a layer's key means; see kernels/core/src/kv_pool/key_turns.rs.

    rope: None if keys are not rotated.
    """

    positions: torch.Tensor
    block_size: int
    rope: Rope | None

    def to_blocks(self, mean: torch.Tensor) -> torch.Tensor:
        """Rotates the mean [G, D] of the first block to the block of each position: [T, G, D]."""
        means = mean[None].expand(self.positions.shape[0], -1, -1)
        return means if self.rope is None else rotate(means, self._starts, self.rope, 1.0)

    def to_first(self, keys: torch.Tensor) -> torch.Tensor:
        """Rotates keys [T, G, D] back from the first position of their block to position 0."""
        return keys if self.rope is None else rotate(keys, -self._starts, self.rope, 1.0)

    @property
    def _starts(self) -> torch.Tensor:
        return self.positions // self.block_size * self.block_size
