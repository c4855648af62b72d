"""The CPU backend's slots for adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server._kernels import Adapter, packed_bytes
from trunkline_server.adapters.memory import bytes_of
from trunkline_server.backends.cpu.memory import ADAPTER_FORMATS
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.tensor import Tensor

if TYPE_CHECKING:
    from trunkline_server._kernels import Executor
    from trunkline_server.adapters.adapter import Adapter as AdapterFiles
    from trunkline_server.adapters.adapter import Factors
    from trunkline_server.backends.interface import PackedAdapter


class CpuAdapters:
    """Implements `AdapterSlots`. weight_ids: the kernels' ids of the weights that `Ops.linear` takes."""

    def __init__(self, executor: Executor, weight_ids: Mapping[str, int], num_slots: int) -> None:
        executor.set_num_adapter_slots(num_slots)
        self._executor = executor
        self._weight_ids = weight_ids

    def num_bytes(self, adapter: AdapterFiles) -> int:
        return bytes_of(adapter, _packed_bytes)

    def pack(self, factors: Mapping[str, Factors]) -> Adapter:
        weights = []
        for name, (a, b, scale, gain) in factors.items():
            heads = b.interleaved_heads
            a, b = _as_floats(a), _as_floats(b)
            rank, num_columns = a.shape
            down, up = (a.format, a.data, rank, num_columns), (b.format, b.data, b.shape[0])
            weights.append((self._weight_ids[name], down, up, scale, heads, gain))
        return Adapter(weights)

    def put(self, slot: int, packed: PackedAdapter | None) -> None:
        assert packed is None or isinstance(packed, Adapter), "packed by `pack`"
        self._executor.set_adapter(slot, packed)


def _packed_bytes(name: str, num_rows: int, num_columns: int) -> int:
    return packed_bytes(ADAPTER_FORMATS.get(name, "F32"), num_rows, num_columns)


def _as_floats(tensor: Tensor) -> Tensor:
    """Returns the tensor in a format of floats, its rows in the order of the file."""
    if tensor.format in ADAPTER_FORMATS:
        return tensor
    in_file_order = Tensor(tensor.name, tensor.format, tensor.shape, tensor.data)
    values = np.ascontiguousarray(dequantize(in_file_order), dtype=np.float32)
    return Tensor(tensor.name, "F32", tensor.shape, memoryview(values.tobytes()))
