"""Scales and shifts keys before int4 rounds them, and scales queries to match; see decision 13.

A key is rounded as key * factor - mean, and its query is multiplied by 1 / factor. factor: of a channel, (mean query² /
mean (key - mean)²)^(1/4), which minimises the error of scores. mean: the common part of the keys in a tile of
positions, rotated by rope to the tile's first position; attention adds query · mean, one number for all scores of a
tile.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunkline_server.backends.cuda.kernels.hadamard import transform_run
from trunkline_server.backends.cuda.kernels.numerics import TILE_POSITIONS
from trunkline_server.models.ops import Rope

# Lower bound of a channel's mean square, relative to the mean of its head.
_FLOOR = 1e-4
_TILE: int = TILE_POSITIONS.value


@dataclass(frozen=True)
class KeyScaling:
    """Factors and means of all layers.

    factors: [layers, 2, G, D] f32, factor and 1 / factor. means: [layers, G, tiles, D] in the activations' dtype.
    Means are transformed in the same way as int4's heads, so the number subtracted from a key equals the one added to
    its scores, bit for bit.
    """

    factors: torch.Tensor
    means: torch.Tensor

    def content(self) -> bytes:
        """Returns the bytes that determine the scaling, for a hash. The first tile's means determine all others."""
        parts = (self.factors, self.means[:, :, 0].float())
        return b"".join(part.cpu().numpy().tobytes() for part in parts)

    @staticmethod
    def neutral(
        *, num_layers: int, num_kv_heads: int, head_size: int, num_positions: int, dtype: torch.dtype,
        device: torch.device,
    ) -> KeyScaling:  # fmt: skip
        """Returns a scaling that changes nothing, for up to `num_positions` positions."""
        factors = torch.ones(num_layers, 2, num_kv_heads, head_size, dtype=torch.float32, device=device)
        tiles = -(-num_positions // _TILE)
        return KeyScaling(factors, torch.zeros(num_layers, num_kv_heads, tiles, head_size, dtype=dtype, device=device))

    def measure(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, rope: Rope | None, *, takes_mean: bool
    ) -> None:
        """Sets the factors and means of a layer from a text. Sums are f64.

        queries [T, H, D], keys [T, G, D]: f32, of positions 0 to T in whole tiles, rotated by `rope`. takes_mean: False
        if scores have a soft cap and so are not relative to each other. Heads whose keys or queries are zero or not
        finite keep a factor of 1 and a mean of 0.
        """
        num_kv_heads, head_size = keys.shape[1:]
        starts = torch.arange(keys.shape[0], device=keys.device) // _TILE * _TILE
        keys = keys.double()
        mean = rotated(keys, -starts, rope).mean(0) if takes_mean else torch.zeros_like(keys[0])
        tile_starts = torch.arange(self.means.shape[2], device=keys.device) * _TILE
        means = rotated(mean.expand(len(tile_starts), -1, -1), tile_starts, rope)
        moved = keys - rotated(mean.expand(keys.shape[0], -1, -1), starts, rope)
        variance, has_keys = _floored(moved.square().mean(0))
        squares = queries.double().square().mean(0).view(num_kv_heads, -1, head_size).mean(1)
        squares, has_queries = _floored(squares)
        factor = torch.where(has_keys & has_queries, (squares / variance).sqrt().sqrt(), 1.0).float()
        self.factors[layer] = torch.stack([factor, 1.0 / factor])
        means = _transformed(means * factor).transpose(0, 1).to(self.means.dtype)
        is_known = means.isfinite().flatten(1).all(1) & (has_keys & has_queries)[:, 0]
        self.means[layer] = torch.where(is_known[:, None, None], means, 0.0)


def rotated(heads: torch.Tensor, positions: torch.Tensor, rope: Rope | None) -> torch.Tensor:
    """Rotates heads [T, heads, D] by `rope` at positions [T], without its attention factor; angles are f64."""
    if rope is None:
        return heads
    angles = positions[:, None, None].double() * torch.tensor(rope.inv_freq, dtype=torch.float64, device=heads.device)
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    first, second = heads[..., : rope.dim].chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin, heads[..., rope.dim :]], dim=-1)


def _transformed(heads: torch.Tensor) -> torch.Tensor:
    """Multiplies runs of heads [..., D] by the Walsh-Hadamard matrix, as `kernels/hadamard.py` does."""
    distance, run = 1, transform_run(heads.shape[-1])
    while distance < run:
        pairs = heads.reshape(*heads.shape[:-1], -1, 2, distance)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        heads = torch.stack([low + high, low - high], dim=-2).reshape(heads.shape)
        distance *= 2
    return heads


def _floored(squares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns squares [G, D] over their head's mean, at least `_FLOOR`, and which heads [G, 1] have a positive mean."""
    mean = squares.mean(-1, keepdim=True)
    return (squares / mean).clamp_min(_FLOOR), torch.isfinite(mean) & (mean > 0)
