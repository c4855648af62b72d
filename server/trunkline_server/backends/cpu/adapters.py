"""The CPU backend's slots for adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server._kernels import Adapter
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.tensor import Tensor

if TYPE_CHECKING:
    from trunkline_server._kernels import Executor
    from trunkline_server.adapters.adapter import Factors
    from trunkline_server.backends.interface import PackedAdapter

# The formats that the kernels multiply as they are stored. Others become the first of them.
_FORMATS = ("F32", "F16", "BF16")


class CpuAdapters:
    """Implements `AdapterSlots`. weight_ids: the kernels' ids of the weights that `Ops.linear` takes."""

    def __init__(self, executor: Executor, weight_ids: Mapping[str, int], num_slots: int) -> None:
        executor.set_num_adapter_slots(num_slots)
        self._executor = executor
        self._weight_ids = weight_ids

    def pack(self, factors: Mapping[str, Factors]) -> Adapter:
        weights = []
        for name, (a, b, scale) in factors.items():
            heads = b.interleaved_heads
            a, b = _as_floats(a), _as_floats(b)
            rank, num_columns = a.shape
            down, up = (a.format, a.data, rank, num_columns), (b.format, b.data, b.shape[0])
            weights.append((self._weight_ids[name], down, up, scale, heads))
        return Adapter(weights)

    def put(self, slot: int, packed: PackedAdapter | None) -> None:
        assert packed is None or isinstance(packed, Adapter), "packed by `pack`"
        self._executor.set_adapter(slot, packed)


def _as_floats(tensor: Tensor) -> Tensor:
    """Returns the tensor in a format of floats, its rows in the order of the file."""
    if tensor.format in _FORMATS:
        return tensor
    in_file_order = Tensor(tensor.name, tensor.format, tensor.shape, tensor.data)
    values = np.ascontiguousarray(dequantize(in_file_order), dtype=np.float32)
    return Tensor(tensor.name, _FORMATS[0], tensor.shape, memoryview(values.tobytes()))
