"""The reference backend's slots for adapters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

import torch

from trunkline_server.adapters.memory import bytes_of
from trunkline_server.backends.reference.ops import Change
from trunkline_server.weights.dequantize import dequantize

if TYPE_CHECKING:
    from trunkline_server._proto.shard_pb2 import SequenceStart
    from trunkline_server.adapters.adapter import Adapter as AdapterFiles
    from trunkline_server.adapters.adapter import Factors
    from trunkline_server.backends.interface import PackedAdapter
    from trunkline_server.backends.reference.ops import Adapter


def matrix_bytes(num_rows: int, num_columns: int) -> int:
    return 4 * num_rows * num_columns


class TorchAdapters:
    """Implements `AdapterSlots` with f32 tensors."""

    def __init__(self) -> None:
        self._slots: dict[int, Adapter] = {}

    def num_bytes(self, adapter: AdapterFiles) -> int:
        return bytes_of(adapter, lambda _format, num_rows, num_columns: matrix_bytes(num_rows, num_columns))

    def pack(self, factors: Mapping[str, Factors]) -> PackedAdapter:
        def packed(one: Factors) -> Change:
            a, b = (torch.from_numpy(dequantize(tensor).copy()).float() for tensor in (one.a, one.b))
            return Change(a, one.scale * b, None if one.gain is None else torch.from_numpy(one.gain))

        return {name: packed(one) for name, one in factors.items()}

    def put(self, slot: int, packed: PackedAdapter | None) -> None:
        if packed is None:
            self._slots.pop(slot, None)
        else:
            self._slots[slot] = cast("Adapter", packed)

    def used_by(self, start: SequenceStart) -> Adapter:
        """Returns what the adapter in a sequence's slot adds for it. Raises ValueError if the slot is empty."""
        if start.adapter_slot not in self._slots:
            raise ValueError(f"slot {start.adapter_slot} has no adapter")
        adapter = self._slots[start.adapter_slot]
        return {name: change.scaled(start.adapter_scale) for name, change in adapter.items()}
