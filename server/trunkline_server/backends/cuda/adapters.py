"""The CUDA backend's slots for adapters: device memory at fixed addresses, so that captured steps find them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch

from trunkline_server.backends.cuda.kernels.low_rank import RANK_UNIT, TILE_OUTPUTS, Place, Slots, sums_shape
from trunkline_server.backends.cuda.step_input import AdapterUse
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.places import takes_adapter

if TYPE_CHECKING:
    from trunkline_server._proto.shard_pb2 import SequenceStart
    from trunkline_server.adapters.adapter import Adapter, Factors
    from trunkline_server.backends.cuda.device import Device
    from trunkline_server.backends.cuda.weights import DeviceWeight
    from trunkline_server.backends.interface import PackedAdapter


class _Member(NamedTuple):
    """A weight: its stack's place and number of outputs, its number in the stack, and [begin, end) of its outputs."""

    place: Place
    num_outputs: int
    number: int
    begin: int
    end: int


class SlotLayout:
    """The places of all weights that adapters may change, in a slot. Their shapes alone decide them.

    max_rank: rounded up to whole `RANK_UNIT`s. rank_elements: of a slot, for each rank. num_weights and num_outputs: of
    all stacks.
    """

    def __init__(self, matrices: Iterable[DeviceWeight], max_rank: int, device: torch.device) -> None:
        self.max_rank = _padded(max_rank)
        self.rank_elements = self.num_weights = self.num_outputs = 0
        self._members: dict[str, _Member] = {}
        for matrix in matrices:
            slices, width = matrix.slices, matrix.num_inputs
            if not all(takes_adapter(name, (end - begin, width)) for name, (begin, end) in slices.items()):
                continue
            tiles = [
                (first, min(first + TILE_OUTPUTS, end), number)
                for number, (begin, end) in enumerate(slices.values())
                for first in range(begin, end, TILE_OUTPUTS)
            ]
            place = Place(
                begin=self.rank_elements, first_weight=self.num_weights, first_output=self.num_outputs,
                num_weights=len(slices), num_inputs=width, tiles=torch.tensor(tiles, dtype=torch.int32, device=device),
            )  # fmt: skip
            for number, (name, rows) in enumerate(slices.items()):
                self._members[name] = _Member(place, matrix.num_outputs, number, *rows)
            self.rank_elements += len(slices) * width + matrix.num_outputs
            self.num_weights += len(slices)
            self.num_outputs += matrix.num_outputs

    def place(self, weight: str) -> Place | None:
        """Returns the place of the stack that a weight is in; None if no adapter may change it."""
        member = self._members.get(weight)
        return None if member is None else member.place

    def num_bytes(self, num_slots: int, element_bytes: int) -> int:
        """Returns the bytes of the slots on the device."""
        others = self.num_weights + self.num_outputs + 2
        return num_slots * (self.max_rank * self.rank_elements * element_bytes + 4 * others)

    def sums_bytes(self, num_rows: int) -> int:
        """Returns the most memory that a product of a step takes beside the slots."""
        places = {id(member.place): member.place for member in self._members.values()}
        shapes = (sums_shape(place, num_rows, self.max_rank) for place in places.values())
        return max((4 * splits * rows * columns for splits, rows, columns in shapes), default=0)

    def write(self, name: str, factors: Factors, rank: int, packed: _Packed) -> None:
        """Writes A, B, scale and gain of a weight into the contents of a slot of this rank."""
        place, num_outputs, number, begin, end = self._members[name]
        a, b = (torch.from_numpy(dequantize(tensor)) for tensor in (factors.a, factors.b))
        a_begin = rank * place.begin
        b_begin = a_begin + rank * place.num_weights * place.num_inputs
        values = packed.values
        values[a_begin:b_begin].view(-1, rank, place.num_inputs)[number, : len(a)] = a
        values[b_begin : b_begin + rank * num_outputs].view(-1, rank)[begin:end, : len(a)] = b
        packed.scales[place.first_weight + number] = factors.scale
        if factors.gain is not None:
            packed.gains[place.first_output + begin : place.first_output + end] = torch.from_numpy(factors.gain)
            packed.has_gains.fill_(1)


@dataclass(frozen=True)
class _Packed:
    """A slot's contents in pinned memory, as in `Slots`. values: of the padded rank."""

    values: torch.Tensor
    rank: torch.Tensor
    scales: torch.Tensor
    gains: torch.Tensor
    has_gains: torch.Tensor


class DeviceAdapters:
    """Implements `AdapterSlots`. layout: the places in each slot. tensors: of all slots, as kernels take them."""

    def __init__(self, layout: SlotLayout, num_slots: int, dtype: torch.dtype, device: Device) -> None:
        self.layout = layout
        self._device = device
        size, where = layout.max_rank * layout.rank_elements, device.torch_device
        self.tensors = Slots(
            torch.zeros(num_slots, size, dtype=dtype, device=where),
            torch.zeros(num_slots, dtype=torch.int32, device=where),
            torch.zeros(num_slots, layout.num_weights, dtype=torch.float32, device=where),
            torch.zeros(num_slots, layout.num_outputs, dtype=torch.float32, device=where),
            torch.zeros(num_slots, dtype=torch.int32, device=where),
            size, layout.num_weights, layout.num_outputs, layout.max_rank,
        )  # fmt: skip
        self._loaded: set[int] = set()
        self._users = Counter[int]()

    def num_bytes(self, adapter: Adapter) -> int:
        """Returns the bytes of a slot, which every adapter takes."""
        return self.layout.num_bytes(1, self.tensors.elements.dtype.itemsize)

    def pack(self, factors: Mapping[str, Factors]) -> PackedAdapter:
        self._device.use()
        layout, dtype = self.layout, self.tensors.elements.dtype
        rank = _padded(max(one.a.shape[0] for one in factors.values()))
        values = self._device.pinned_bytes(rank * layout.rank_elements * dtype.itemsize).view(dtype).zero_()
        pinned = self._device.pinned
        packed = _Packed(
            values, pinned(1).fill_(rank), pinned(layout.num_weights).view(torch.float32),
            pinned(layout.num_outputs).view(torch.float32).fill_(1), pinned(1).fill_(0),
        )  # fmt: skip
        for name, one in factors.items():
            layout.write(name, one, rank, packed)
        return packed

    @torch.inference_mode()
    def put(self, slot: int, packed: PackedAdapter | None) -> None:
        """Copies an adapter behind the steps that have begun, which may still read the slot's last one."""
        num_slots = len(self.tensors.ranks)
        if not 1 <= slot <= num_slots:
            raise ValueError(f"there is no slot {slot}; the slots are 1 to {num_slots}")
        if self._users[slot]:
            raise ValueError(f"a started sequence uses slot {slot}")
        self._loaded.discard(slot)
        if packed is None:
            return
        assert isinstance(packed, _Packed), "packed by `pack`"
        self._device.use()
        self._device.copy(packed.values, self.tensors.elements[slot - 1, : len(packed.values)])
        self._device.copy(packed.rank, self.tensors.ranks[slot - 1 : slot])
        self._device.copy(packed.scales, self.tensors.scales[slot - 1])
        self._device.copy(packed.gains, self.tensors.gains[slot - 1])
        self._device.copy(packed.has_gains, self.tensors.has_gains[slot - 1 : slot])
        self._loaded.add(slot)

    def begin_use(self, start: SequenceStart) -> AdapterUse | None:
        """Returns the adapter of a sequence that starts, if it has one. Raises ValueError if its slot is empty."""
        if not start.adapter_slot:
            return None
        if start.adapter_slot not in self._loaded:
            raise ValueError(f"slot {start.adapter_slot} has no adapter")
        self._users[start.adapter_slot] += 1
        return AdapterUse(start.adapter_slot, start.adapter_scale)

    def end_use(self, use: AdapterUse | None) -> None:
        if use is not None:
            self._users[use.slot] -= 1

    def reset(self) -> None:
        """Forgets all sequences."""
        self._users.clear()


def _padded(rank: int) -> int:
    return -(-rank // RANK_UNIT) * RANK_UNIT
