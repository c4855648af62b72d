"""Rounds K and V as the CPU backend's int8 and int4 do, with results in f32.

The Walsh-Hadamard transform, the levels and the scales are those of kernels/core/src/ops (`hadamard.rs`,
`quantize_head.rs`, `quantize_nibbles.rs`); int4's key scaling is that of kernels/core/src/kv_pool/key_scaling.rs.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunkline_server.backends.reference.turn import Turn

_LARGEST_BYTE = 127.0
_TINY = 1e-30
_MAGNITUDES = torch.tensor([6.0, 18.0, 31.0, 44.0, 58.0, 75.0, 96.0, 127.0])
_BOUNDS = (_MAGNITUDES[1:] + _MAGNITUDES[:-1]) / 2
_PLACES = (127.0, 127.0 / 0.94, 127.0 / 0.88, 127.0 / 0.82)
_FLOOR = 1e-4


def transform(x: torch.Tensor) -> torch.Tensor:
    """Multiplies each run of n elements by the Walsh-Hadamard matrix; n is the largest power of two that divides D."""
    size = x.shape[-1]
    distance, mixed = 1, size & -size
    while distance < mixed:
        pairs = x.reshape(*x.shape[:-1], -1, 2, distance)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack([low + high, low - high], dim=-2).reshape(*x.shape)
        distance *= 2
    return x


def untransform(x: torch.Tensor) -> torch.Tensor:
    """Inverts `transform` up to rounding."""
    size = x.shape[-1]
    return transform(x) / (size & -size)


def to_bytes(x: torch.Tensor) -> torch.Tensor:
    """Rounds x [..., D] to bytes times the bf16 scale of their head; a head with a non-finite element becomes NaN."""
    largest = x.abs().amax(-1, keepdim=True)
    scale = (largest * (1.0 / _LARGEST_BYTE)).bfloat16().float()
    rounded = torch.round(x * (1.0 / scale)) * scale
    return _checked(x, torch.where(largest < _TINY, 0.0, rounded))


def to_levels(x: torch.Tensor) -> torch.Tensor:
    """Rounds x [..., D] to 16 levels times their head's f16 scale; a head with a non-finite element becomes NaN."""
    magnitude = x.abs()
    largest = magnitude.amax(-1, keepdim=True).clamp_min(_TINY)
    best = torch.zeros_like(largest)
    scale = torch.zeros_like(largest)
    for place in _PLACES:
        levels = _MAGNITUDES[torch.bucketize(magnitude * (place / largest), _BOUNDS, right=True)]
        dot, square = (levels * magnitude).sum(-1, keepdim=True), levels.square().sum(-1, keepdim=True)
        gain = dot * (dot / square)
        scale = torch.where(gain > best, dot / square, scale)
        best = torch.maximum(best, gain)
    scale = scale.half().float()
    levels = _MAGNITUDES[torch.bucketize(magnitude * torch.where(scale > 0, 1.0 / scale, 0.0), _BOUNDS, right=True)]
    return _checked(x, torch.where(x < 0, -levels, levels) * scale)


def _checked(x: torch.Tensor, rounded: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isfinite(x).all(-1, keepdim=True), rounded, torch.nan)


@dataclass(frozen=True)
class KeyScaling:
    """int4's mean and factor of keys, [layers, G, D] f32 each. Keys are rounded as (key - mean) * factor.

    mean: that of the first block; for later blocks it is rotated.
    """

    mean: torch.Tensor
    factor: torch.Tensor


class KeySums:
    """Sums over tokens, in f64, from which a `KeyScaling` is computed."""

    def __init__(self, *, num_layers: int, num_kv_heads: int, head_size: int) -> None:
        shape = (num_layers, num_kv_heads, head_size)
        self._means, self._key_squares, self._query_squares = (
            torch.zeros(shape, dtype=torch.float64) for _ in range(3)
        )
        self._keys: dict[int, tuple[torch.Tensor, Turn]] = {}

    def set_keys(self, layer: int, keys: torch.Tensor, turn: Turn) -> None:
        """Adds the keys [T, G, D] of all positions of a sequence of whole blocks."""
        self._keys[layer] = keys, turn
        self._set_mean(layer, turn.to_first(keys).double().mean(0))

    def take_no_mean(self, layer: int) -> None:
        """Uses a mean of zero. For layers whose scores may not all change alike, because of a soft cap or of sinks.

        With sinks, only a mean that does not rotate changes all scores.
        """
        self._set_mean(layer, torch.zeros_like(self._means[layer]))

    def _set_mean(self, layer: int, mean: torch.Tensor) -> None:
        keys, turn = self._keys[layer]
        self._means[layer] = mean
        self._key_squares[layer] = (keys.double() - turn.to_blocks(mean)).square().mean(0)

    def add_queries(self, layer: int, queries: torch.Tensor) -> None:
        """Adds queries [T, H, D]."""
        num_kv_heads, head_size = self._means.shape[1:]
        grouped = queries.double().square().sum(0).reshape(num_kv_heads, -1, head_size)
        self._query_squares[layer] += grouped.sum(1)

    def scaling(self) -> KeyScaling:
        variance, has_keys = _floored(self._key_squares)
        queries, has_queries = _floored(self._query_squares)
        known = has_keys & has_queries
        factor = torch.where(known, (queries / variance).sqrt().sqrt(), 1.0)
        return KeyScaling(torch.where(known, self._means, 0.0).float(), factor.float())


def _floored(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns values over the mean of their head, at least `_FLOOR`, and which heads have a positive, finite mean."""
    mean = values.mean(-1, keepdim=True)
    return (values / mean).clamp_min(_FLOOR), torch.isfinite(mean) & (mean > 0)
