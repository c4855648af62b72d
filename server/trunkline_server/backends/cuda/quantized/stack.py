"""Stacks weights that are multiplied with the same x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import torch

from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.weights import DeviceWeight

# Fields of each kind that have a row per output; all other fields must be equal.
_ROWS = {GroupedWeight: ("quants", "scales", "zeros", "minima"), ScaledWeight: ("values", "scales")}


def stacked(weights: Sequence[DeviceWeight]) -> DeviceWeight | None:
    """Stacks weights of one slice each into one; None if they differ in kind or scheme. Waits for the device."""
    first = weights[0]
    rows = _ROWS.get(type(first))
    if rows is None or any(type(weight) is not type(first) for weight in weights):
        return None
    for entry in fields(first):
        if entry.name in (*rows, "slices", "bias", "num_outputs"):
            continue
        if not all(_equal(getattr(weight, entry.name), getattr(first, entry.name)) for weight in weights[1:]):
            return None
    joined: dict[str, Any] = {}
    for name in rows:
        parts = [getattr(weight, name) for weight in weights]
        is_missing = [part is None for part in parts]
        if any(is_missing) and not all(is_missing):
            return None
        joined[name] = None if is_missing[0] else torch.cat(parts)
    slices: dict[str, tuple[int, int]] = {}
    begin = 0
    for weight in weights:
        slices |= {name: (begin + first_row, begin + end) for name, (first_row, end) in weight.slices.items()}
        begin += weight.num_outputs
    return replace(first, num_outputs=begin, slices=MappingProxyType(slices), bias=_bias(weights), **joined)


def _bias(weights: Sequence[DeviceWeight]) -> torch.Tensor | None:
    given = [weight.bias for weight in weights if weight.bias is not None]
    if not given:
        return None
    return torch.cat(
        [given[0].new_zeros(weight.num_outputs) if weight.bias is None else weight.bias for weight in weights]
    )


def _equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return a == b
