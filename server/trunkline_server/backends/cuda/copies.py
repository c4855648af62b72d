"""Copies blocks between the pool and pinned memory, on streams of their own.

A block has one piece in each layer of the pool, but is one run in pinned memory. Blocks are therefore gathered in a
staging buffer on the device, so that the bus transfers long runs: a whole block on its way out, several layers of a
block on its way in.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypeVar

import torch

from trunkline_server.backends.cuda.device import Device, Event
from trunkline_server.backends.cuda.kv_pool import KvPool

# Size of one staging buffer on the device, at least one block. There are three: one for the way out, two for the way
# in.
STAGING_BYTES = 64 << 20
# Layers of a block that are sent as one run: 20 us of the bus at 50 GB/s, several times what a copy costs the host.
GROUP_BYTES = 1 << 20

# A block id of the pool, and the block's pinned place: [layers, piece_bytes] u8.
Transfer = tuple[int, torch.Tensor]
_Item = TypeVar("_Item")


def staging_bytes(block_bytes: int, wanted: int = STAGING_BYTES) -> int:
    """Returns the size of one staging buffer: whole blocks, at least one."""
    return max(wanted // block_bytes, 1) * block_bytes


class CopyOut:
    """Copies blocks from the pool into pinned places. Called only by the thread of the steps."""

    def __init__(self, device: Device, pool: KvPool, wanted_bytes: int = STAGING_BYTES) -> None:
        self._device, self._pool = device, pool
        self._stream = device.stream()
        num_bytes = staging_bytes(pool.bytes_per_block, wanted_bytes)
        self._at_once = num_bytes // pool.bytes_per_block
        self._staging = torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device)

    def begin(self, blocks: Sequence[Transfer]) -> Event:
        """Copies blocks as they are after all steps that have begun. The event is reached when they are copied."""
        self._stream.wait_for(self._device.steps.mark())
        for batch in _batches(blocks, self._at_once):
            self._stream.run(partial(self._copy, batch))
        return self._stream.mark()

    @torch.inference_mode()
    def _copy(self, batch: Sequence[Transfer]) -> None:
        pool = self._pool
        packed = self._staging[: len(batch) * pool.bytes_per_block].view(len(batch), pool.num_layers, -1)
        block_ids = self._device.send([block_id for block_id, _ in batch])
        torch.index_select(_by_block(pool.pieces), 0, block_ids, out=packed.view(torch.int64))
        for (_, place), block in zip(batch, packed, strict=True):
            self._device.copy(block, place)


class CopyIn:
    """Copies blocks from pinned places into the pool, one group of layers after the other. Called by any thread.

    groups: the layers that are sent together, in order. Two streams alternate between two staging buffers: while one
    batch is unpacked, the next is on the bus.
    """

    def __init__(
        self, device: Device, pool: KvPool, wanted_bytes: int = STAGING_BYTES, group_bytes: int = GROUP_BYTES
    ) -> None:
        self._device, self._pool = device, pool
        self._lock = threading.Lock()
        self._bus, self._unpacking = device.stream(), device.stream()
        at_once = max(1, min(pool.num_layers, group_bytes // pool.layout.piece_bytes))
        self.groups = [range(i, min(i + at_once, pool.num_layers)) for i in range(0, pool.num_layers, at_once)]
        num_bytes = staging_bytes(pool.bytes_per_block, wanted_bytes)
        self._staging = [torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device) for _ in range(2)]
        self._unpacked = [self._unpacking.mark() for _ in range(2)]
        self._turn = 0

    def follow(self, event: Event) -> None:
        """Orders later copies into the pool after an event."""
        with self._lock:
            self._unpacking.wait_for(event)

    def begin(self, blocks: Sequence[Transfer], after: Sequence[Event]) -> list[Event]:
        """Begins to copy blocks; returns one event per group of layers, reached when that group is in the pool.

        after: events that must be reached before the blocks may be written. blocks: at least one, each only once.
        """
        events = []
        with self._lock:
            for event in after:
                self._unpacking.wait_for(event)
            for group in self.groups:
                at_once = self._staging[0].numel() // (len(group) * self._pool.layout.piece_bytes)
                for batch in _batches(blocks, at_once):
                    self._begin_batch(batch, group)
                events.append(self._unpacking.mark())
        return events

    def _begin_batch(self, batch: Sequence[Transfer], group: range) -> None:
        turn = self._turn
        self._turn = 1 - turn
        piece_bytes = self._pool.layout.piece_bytes
        packed = self._staging[turn][: len(batch) * len(group) * piece_bytes].view(len(batch), len(group), piece_bytes)
        self._bus.wait_for(self._unpacked[turn])
        self._bus.run(partial(self._fill, batch, group, packed))
        self._unpacking.wait_for(self._bus.mark())
        self._unpacking.run(partial(self._unpack, batch, group, packed))
        self._unpacked[turn] = self._unpacking.mark()

    @torch.inference_mode()
    def _fill(self, batch: Sequence[Transfer], group: range, packed: torch.Tensor) -> None:
        for (_, place), block in zip(batch, packed, strict=True):
            self._device.copy(place[group.start : group.stop], block)

    @torch.inference_mode()
    def _unpack(self, batch: Sequence[Transfer], group: range, packed: torch.Tensor) -> None:
        block_ids = self._device.send([block_id for block_id, _ in batch]).long()
        pieces = self._pool.pieces[group.start : group.stop]
        _by_block(pieces).index_copy_(0, block_ids, packed.view(torch.int64))


def _by_block(pieces: torch.Tensor) -> torch.Tensor:
    """Views pieces [layers, num_blocks, bytes] as words [num_blocks, layers, bytes / 8], which are copied faster."""
    return pieces.view(torch.int64).transpose(0, 1)


def _batches(items: Sequence[_Item], size: int) -> Iterator[Sequence[_Item]]:
    return (items[begin : begin + size] for begin in range(0, len(items), size))
