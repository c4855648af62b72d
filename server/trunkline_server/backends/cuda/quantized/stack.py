"""Stacks weights that are multiplied with the same x."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch

from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.weights import DeviceWeight

# Fields of each kind that have a row per output; all other fields must be equal.
_ROWS = {GroupedWeight: ("quants", "scales", "zeros", "minima"), ScaledWeight: ("values", "scales")}


def stacked(weights: Sequence[DeviceWeight]) -> DeviceWeight | None:
    """Stacks weights without names and biases; None if they differ in kind or scheme. Waits for the device."""
    first = weights[0]
    if len(weights) == 1:
        return first
    rows = _ROWS.get(type(first))
    if rows is None or any(type(weight) is not type(first) for weight in weights):
        return None
    joined: dict[str, Any] = {"num_outputs": sum(weight.num_outputs for weight in weights)}
    for entry in fields(first):
        values = [getattr(weight, entry.name) for weight in weights]
        if entry.name in rows and all(isinstance(value, torch.Tensor) for value in values):
            joined[entry.name] = torch.cat(values)
        elif entry.name not in joined and not all(_equal(value, values[0]) for value in values[1:]):
            return None
    return replace(first, **joined)


def _equal(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return torch.equal(a, b)
    return a == b
