"""Copies blocks into the pool from pinned memory, after reading them from disk if necessary.

A restore is reported while its last layers are still on the bus. Steps that read its blocks wait for them on the
device, either before each layer or before the whole step.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from trunkline_server._proto.shard_pb2 import BlockRestore, Restore, RestoreOutcome
from trunkline_server.backends.cuda.copies import CopyIn
from trunkline_server.backends.cuda.device import Device, Event
from trunkline_server.backends.cuda.outcomes import Outcomes
from trunkline_server.backends.cuda.places import PlaceTable
from trunkline_server.backends.cuda.worker import Worker

if TYPE_CHECKING:
    from trunkline_server._kernels import Store as BlockFiles

# Most bytes of a restore that may still be in flight when it is reported: about 10 ms of the bus, which bounds the wait
# of other sequences in the step that reads its blocks.
MAX_UNFINISHED_BYTES = 512 << 20
# Bytes that are read from disk at a time; the next batch is read while this one is sent to the device.
BATCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Arrival:
    """Blocks that may still be on the bus. events: one for each group of layers."""

    block_ids: frozenset[int]
    events: Sequence[Event]


class LayerGates:
    """Makes an uncaptured step wait for the blocks that it reads, layer by layer."""

    def __init__(self, device: Device, groups: Sequence[range]) -> None:
        self._device = device
        self._groups = groups
        self._arrivals: Sequence[Arrival] = ()
        self._num_passed = 0

    def arm(self, arrivals: Sequence[Arrival]) -> None:
        """Sets the arrivals that the next step reads; if empty, it does not wait."""
        self._arrivals, self._num_passed = arrivals, 0

    def enter(self, layer: int) -> None:
        """Waits on the device for the K and V of a layer. Called before they are read or written."""
        while self._arrivals and self._num_passed < len(self._groups) and self._groups[self._num_passed].start <= layer:
            for arrival in self._arrivals:
                self._device.steps.wait_for(arrival.events[self._num_passed])
            self._num_passed += 1


@dataclass(slots=True, eq=False)
class _Job:
    """A restore in progress.

    found: places of its first blocks, pinned when it was requested; empty if it has to wait for the disk.
    num_blocks: blocks whose copy has begun; events: of the layer groups of its last batch.
    """

    restore: Restore
    generation: int
    found: list[int]
    num_blocks: int = 0
    problem: str | None = None
    events: list[Event] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Arrivals:
    """Runs restores. Called by the thread of the steps, except for the tasks of the workers.

    near, far: workers. The near worker does restores whose blocks are all in pinned memory, the far worker the
    others, so that a slow disk only delays those that need it. blockers: returns the events that must be reached before
    blocks may be written. Steps that read them have ended already.
    """

    copies: CopyIn
    places: PlaceTable
    outcomes: Outcomes
    near: Worker
    far: Worker
    files: BlockFiles | None
    blockers: Callable[[Collection[int]], list[Event]]
    max_unfinished_bytes: int

    def __post_init__(self) -> None:
        blocks = self.places.blocks
        self._at_once = max(1, min(BATCH_BYTES // blocks[0].nbytes, len(blocks) // 4))
        self._lock = threading.Lock()
        self._generation = 0
        # Slots of unfinished restores, and how many restores read each.
        self._read: Counter[int] = Counter()
        self._arriving: list[Arrival] = []

    def is_reading(self, slot: int) -> bool:
        """Returns True while an unfinished restore reads the slot."""
        with self._lock:
            return self._read[slot] > 0

    def begin(self, restore: Restore) -> None:
        """Begins a restore. Its slots must not be being written; no chunk may use its blocks until it is reported."""
        with self._lock:
            self._read.update(block.slot for block in restore.blocks)
        found = []
        for block in restore.blocks:
            place = self._find(block)
            if place is None:
                break
            found.append(place)
        is_near = self.files is None or len(found) == len(restore.blocks)
        if not is_near:
            # While it is queued, its pins could hold all places, and a restore ahead of it would wait for one forever.
            self.places.unpin(found)
            found = []
        job = _Job(restore, self._generation, found)
        (self.near if is_near else self.far).post(partial(self._do, job))

    def of(self, block_ids: Collection[int]) -> list[Arrival]:
        """Returns reported arrivals that may still be on the bus and contain one of these blocks."""
        with self._lock:
            if self._arriving:
                self._arriving = [arrival for arrival in self._arriving if not arrival.events[-1].is_reached()]
            return [arrival for arrival in self._arriving if not arrival.block_ids.isdisjoint(block_ids)]

    def is_quiet(self) -> bool:
        """Returns True if no reported arrival can be on the bus. Cheap."""
        return not self._arriving

    def reset(self) -> None:
        """Drops restores that have not begun and waits for the others."""
        with self._lock:
            self._generation += 1
        self.places.wake()
        for worker in (self.near, self.far):
            worker.drain()
        with self._lock:
            arriving, self._arriving = self._arriving, []
        for arrival in arriving:
            arrival.events[-1].wait()

    def _find(self, block: BlockRestore) -> int | None:
        # Without a disk, a slot always holds what the router put there. With one, another server may have written it.
        return self.places.find(block.slot, None if self.files is None else block.key)

    def _is_over(self, job: _Job) -> bool:
        return job.generation != self._generation

    def _do(self, job: _Job) -> None:
        began = time.monotonic()
        blocks = job.restore.blocks
        self._send(job, blocks[: len(job.found)], job.found)
        if self.files is None:
            if len(job.found) < len(blocks):
                job.problem = f"slot {blocks[len(job.found)].slot} is empty"
        else:
            self._read_rest(job)
        self._report(job, began)

    def _read_rest(self, job: _Job) -> None:
        """Reads and sends the remaining blocks in batches, up to the first missing one."""
        while job.num_blocks < len(job.restore.blocks) and job.problem is None and not self._is_over(job):
            batch = job.restore.blocks[job.num_blocks : job.num_blocks + self._at_once]
            places = self._fill(job, batch)
            self._send(job, batch[: len(places)], places)

    def _fill(self, job: _Job, batch: Sequence[BlockRestore]) -> list[int]:
        """Reads blocks into pinned places, as many as there is room for, and stops at the first bad one."""
        assert self.files is not None
        places, wanted = [], []
        for index, block in enumerate(batch):
            place = self._find(block)
            if place is None:
                if index == 0:
                    place = self.places.take(block.slot, partial(self._is_over, job))
                else:
                    place = self.places.take(block.slot)
                if place is None:
                    break
                wanted.append((index, block, place))
            places.append(place)
        count, problem = self.files.read([(b.slot, b.key, self.places.memory(place)) for _, b, place in wanted])
        for _, block, place in wanted[:count]:
            self.places.keep(block.slot, place, block.key)
        if problem is not None:
            job.problem = problem
            first_bad = wanted[count][0]
            self.places.unpin(places[first_bad:])
            del places[first_bad:]
        return places

    def _send(self, job: _Job, blocks: Sequence[BlockRestore], places: Sequence[int]) -> None:
        """Begins to copy blocks from their pinned places into the pool."""
        if not blocks or self._is_over(job):
            self.places.unpin(places)
            return
        block_ids = [block.block_id for block in blocks]
        copied = [(block_id, self.places.blocks[place]) for block_id, place in zip(block_ids, places, strict=True)]
        job.events = self.copies.begin(copied, self.blockers(block_ids))
        self.places.unpin_after(job.events[-1], places)
        job.num_blocks += len(blocks)

    def _report(self, job: _Job, began: float) -> None:
        blocks = job.restore.blocks
        if job.events:
            left = self._first_unfinished_group(job.num_blocks)
            if left > 0:
                job.events[left - 1].wait()
        time_us = int((time.monotonic() - began) * 1e6)
        with self._lock:
            if job.events:
                block_ids = frozenset(block.block_id for block in blocks[: job.num_blocks])
                self._arriving.append(Arrival(block_ids, job.events))
            self._read.subtract(block.slot for block in blocks)
            self._read = +self._read
        if not self._is_over(job):
            outcome = RestoreOutcome(restore_id=job.restore.restore_id, num_blocks=job.num_blocks, time_us=time_us)
            self.outcomes.add_restore(outcome, job.problem)

    def _first_unfinished_group(self, num_blocks: int) -> int:
        """Returns the first layer group of the last batch that may still be in flight when the restore is reported."""
        piece_bytes = self.places.blocks[0][0].nbytes
        unfinished = 0
        groups = self.copies.groups
        for number in range(len(groups) - 1, -1, -1):
            unfinished += len(groups[number]) * num_blocks * piece_bytes
            if unfinished > self.max_unfinished_bytes:
                return number + 1
        return 0
