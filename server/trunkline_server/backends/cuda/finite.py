"""Finds weights with numbers that are not finite, once they are on the device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.weights import DeviceWeight

# Codes of e4m3 that are looked at together.
_CODES = 1 << 26
_NO_SIGN, _NAN = 0x7F, 0x7F


def not_finite(weights: Sequence[DeviceWeight]) -> str | None:
    """Returns the name of the first weight that has a number which is not finite; None if all are.

    Reads each weight once and waits for the device once.
    """
    if not weights:
        return None
    are_finite = torch.stack([_is_finite(_rows(weight)) for weight in weights]).tolist()
    for weight, is_finite in zip(weights, are_finite, strict=True):
        if not is_finite:
            for name, (begin, end) in weight.slices.items():
                if not bool(_is_finite([rows[begin:end] for rows in _rows(weight)])):
                    return name
    return None


def _rows(weight: DeviceWeight) -> list[torch.Tensor]:
    """Returns the numbers of a weight that may be infinite or NaN, with a row for each output."""
    found = [value for value in vars(weight).values() if isinstance(value, torch.Tensor) and value.is_floating_point()]
    codes = [weight.quants] if isinstance(weight, GroupedWeight) and weight.is_e4m3 else []
    return [rows for rows in (*found, *codes) if len(rows) == weight.num_outputs]


def _is_finite(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([flag for part in parts for flag in _flags(part)]).all()


def _flags(part: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yields whether all numbers are finite, without a copy of them."""
    if part.element_size() > 1:
        yield from map(torch.isfinite, torch.aminmax(part))
        return
    for codes in torch.split(part.view(torch.uint8).flatten(), _CODES):
        yield (codes & _NO_SIGN).max() != _NAN
