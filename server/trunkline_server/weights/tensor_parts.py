"""Weights cut out of the tensors that hold them: rows, matrices of a stack, transposes.

Numpy takes longer to import than all else that a shard needs, so only what computes with elements imports it.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trunkline_server.models.places import Place
from trunkline_server.weights.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Integers as wide as the elements of these formats.
_ELEMENTS = {"F32": "u4", "F16": "u2", "BF16": "u2"}


def floats(name: str, values: NDArray[np.float32]) -> Tensor:
    return Tensor(name=name, format="F32", shape=values.shape, data=values.view("u1").reshape(-1))


def part_at(tensor: Tensor, place: Place) -> Tensor:
    """Returns the part of a tensor at its place. Rows that do not follow each other are copied."""
    if place.index is not None:
        tensor = tensor.part(place.index)
    if place.is_transposed or place.step > 1:
        return _strided(tensor, place)
    if place.flattens:
        return replace(tensor, shape=(math.prod(tensor.shape),))
    if not place.rows:
        return tensor
    runs = [tensor.rows(begin, end) for begin, end in place.rows]
    if place.subtracts_rows:
        from trunkline_server.weights.dequantize import dequantize

        first, second = (dequantize(run) for run in runs)
        return floats(tensor.name, first - second)
    if place.transposes_rows:
        return transposed(*runs)
    if len(runs) == 1:
        return runs[0]
    import numpy as np

    data = np.concatenate([np.frombuffer(run.data, np.uint8) for run in runs])
    shape = (sum(run.shape[0] for run in runs), *tensor.shape[1:])
    return replace(tensor, shape=shape, data=data, is_mapped=False)


def transposed_format(format_name: str) -> str:
    """Returns the format of a transpose. Quantised formats have groups along rows, so they become F16."""
    return format_name if format_name in _ELEMENTS else "F16"


def transposed(tensor: Tensor) -> Tensor:
    import numpy as np

    from trunkline_server.weights.dequantize import dequantize

    if (stored_as := transposed_format(tensor.format)) != tensor.format:
        data = dequantize(tensor).astype(np.float16).view(np.uint8).reshape(-1)
        tensor = replace(tensor, format=stored_as, data=data)
    values = np.frombuffer(tensor.data, _ELEMENTS[tensor.format]).reshape(tensor.shape)
    data = np.ascontiguousarray(values.T).view(np.uint8).reshape(-1)
    return replace(tensor, shape=tensor.shape[::-1], data=data, is_mapped=False)


def _strided(tensor: Tensor, place: Place) -> Tensor:
    """Copies rows that lie apart, or across the tensor's rows. Its format is one of floats."""
    import numpy as np

    elements = np.frombuffer(tensor.data, np.uint8).reshape(*tensor.shape, -1)
    if place.is_transposed:
        elements = elements.swapaxes(0, 1)
    begin, end = place.rows[0] if place.rows else (0, len(elements))
    elements = elements[begin : end : place.step]
    data = np.ascontiguousarray(elements).reshape(-1)
    data.flags.writeable = False
    return replace(tensor, shape=elements.shape[:-1], data=data, is_mapped=False)
