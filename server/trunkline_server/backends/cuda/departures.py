"""Blocks on their way out of the pool: into pinned memory as soon as their step computed them, then onto the disk.

begin (behind the step) ──▶ end (its outcome is known) ──▶ in pinned memory ──▶ written, if there is a disk ──▶ told
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from trunkline_server.backends.cuda.copies import CopyOut
from trunkline_server.backends.cuda.device import Event
from trunkline_server.backends.cuda.host_pool import HostPool
from trunkline_server.backends.cuda.outcomes import Outcomes
from trunkline_server.backends.cuda.places import PlaceTable
from trunkline_server.backends.cuda.worker import Worker

# How long a step waits for the blocks that it stored on disk: a router that is told of them with the step's result can
# count on them from then on. A disk that takes longer holds no step.
STORE_WAIT_S = 0.01
# Of all places, those that may wait for the disk: restores need some too.
MAX_WAITING_PART = 0.5


class BlockFiles(Protocol):
    """The store on disk, as `_kernels.Store` is one."""

    def write(
        self, slot: int, keys: tuple[bytes, bytes, bytes], depth: int, token_ids: Sequence[int], memory: memoryview
    ) -> None:
        """Raises OSError."""
        ...

    def read(self, blocks: Sequence[tuple[int, bytes, memoryview]]) -> tuple[int, str | None]:
        """How many, from the first on, are there; why the next one is not."""
        ...

    def erase(self, slot: int) -> None:
        """Raises OSError."""
        ...

    def sync(self) -> None:
        """Raises OSError."""
        ...


class KeyChain:
    """Keys of a sequence's blocks, as far as they were needed. extend: the key behind one and a block's tokens."""

    def __init__(self, root: bytes, block_size: int, extend: Callable[[bytes, Sequence[int]], bytes]) -> None:
        self._keys = [root]
        self._block_size = block_size
        self._extend = extend

    def around(self, index: int, token_ids: Sequence[int]) -> tuple[bytes, bytes, bytes]:
        """The root key, and the keys before and of the block `index`, all of whose tokens are known."""
        while len(self._keys) <= index + 1:
            begin = (len(self._keys) - 1) * self._block_size
            self._keys.append(self._extend(self._keys[-1], token_ids[begin : begin + self._block_size]))
        return self._keys[0], self._keys[index], self._keys[index + 1]


@dataclass(frozen=True, slots=True)
class BlockToStore:
    """token_ids: the sequence's, which may grow until the step ended. chain: None without a disk.

    block_id: None if the block was not computed.
    """

    sequence_id: int
    slot: int
    block_index: int
    block_id: int | None
    token_ids: Sequence[int]
    chain: KeyChain | None


@dataclass(slots=True, eq=False)
class StepStores:
    """Of one step. places: of each block; None if there is none for it."""

    blocks: Sequence[BlockToStore]
    places: list[int | None] = field(default_factory=list)
    event: Event | None = None


class Departures:
    """Called by the thread of the steps, but for `events_of` and what `worker` does."""

    def __init__(
        self,
        copies: CopyOut,
        host: HostPool,
        places: PlaceTable,
        outcomes: Outcomes,
        worker: Worker,
        files: BlockFiles | None,
        block_size: int,
    ) -> None:
        self._copies, self._host, self._places = copies, host, places
        self._outcomes, self._worker, self._files = outcomes, worker, files
        self._block_size = block_size
        self._most_waiting = max(1, int(places.num_places * (MAX_WAITING_PART if files is not None else 1)))
        self._changed = threading.Condition()
        # Slots of stores that are not over.
        self._slots: set[int] = set()
        self._num_waiting = 0
        self._begun: list[StepStores] = []
        # Copies that may be under way, and the blocks that they read.
        self._leaving: deque[tuple[Event, frozenset[int]]] = deque()

    def is_storing(self, slot: int) -> bool:
        """Whether a store into the slot is not over."""
        with self._changed:
            return slot in self._slots

    def is_quiet(self) -> bool:
        """Whether no copy can be under way. Quick."""
        return not self._leaving

    def events_of(self, block_ids: Collection[int]) -> list[Event]:
        """What has to be reached before these blocks are written. From any thread."""
        with self._changed:
            while self._leaving and self._leaving[0][0].is_reached():
                self._leaving.popleft()
            return [event for event, blocks in self._leaving if not blocks.isdisjoint(block_ids)]

    def begin(self, blocks: Sequence[BlockToStore]) -> StepStores:
        """Copies blocks of the step that was begun last, whose slots are in no transfer."""
        stores = StepStores(blocks)
        copied = []
        for block in blocks:
            place = None
            with self._changed:
                has_room = len(self._slots) < self._most_waiting
                self._slots.add(block.slot)
            # What the slot held is gone in any case.
            self._places.drop(block.slot)
            if block.block_id is not None and has_room:
                place = self._places.take(block.slot)
            if place is not None and block.block_id is not None:
                copied.append((block.block_id, self._host.place(place)))
            stores.places.append(place)
        if copied:
            stores.event = self._copies.begin(copied)
            with self._changed:
                self._leaving.append((stores.event, frozenset(block_id for block_id, _ in copied)))
        self._begun.append(stores)
        return stores

    def end(self, stores: StepStores, failed: Collection[int]) -> None:
        """The step's outcomes are known, and so are all tokens. failed: sequences whose blocks are not stored.

        Waits a little for the disk, if it was not behind already.
        """
        self._begun.remove(stores)
        with self._changed:
            is_behind = self._num_waiting > 0
            self._num_waiting += len(stores.blocks)
        for block, place in zip(stores.blocks, stores.places, strict=True):
            is_failed = block.block_id is None or block.sequence_id in failed
            self._worker.post(partial(self._finish, block, place, stores.event, is_failed))
        if self._files is not None and not is_behind:
            with self._changed:
                self._changed.wait_for(lambda: self._num_waiting == 0, STORE_WAIT_S)

    def reset(self) -> None:
        """Writes what was told to be right, forgets the rest; returns when nothing is under way."""
        for stores in self._begun:
            if stores.event is not None:
                stores.event.wait()
            self._places.unpin([place for place in stores.places if place is not None])
            with self._changed:
                self._slots -= {block.slot for block in stores.blocks}
        self._begun.clear()
        self.drain()

    def drain(self) -> None:
        """Returns when all stores that were ended are over."""
        self._worker.drain()

    def _finish(self, block: BlockToStore, place: int | None, event: Event | None, is_failed: bool) -> None:
        problem = None
        if event is not None:
            event.wait()
        if is_failed:
            problem = "the block was not computed"
        elif place is None:
            problem = f"more than {self._most_waiting} blocks wait for the disk, or all pinned memory is in use"
        else:
            problem = self._keep(block, place)
        if place is not None:
            self._places.unpin([place])
        with self._changed:
            self._slots.discard(block.slot)
            self._outcomes.add_store(block.slot, problem)
            self._num_waiting -= 1
            self._changed.notify_all()

    def _keep(self, block: BlockToStore, place: int) -> str | None:
        """Writes a block that is in its place, where there is a disk. Returns what went wrong."""
        key = b""
        if self._files is not None:
            assert block.chain is not None, "made where there is a disk"
            begin, end = block.block_index * self._block_size, (block.block_index + 1) * self._block_size
            token_ids = block.token_ids[begin:end]
            if len(token_ids) < self._block_size:
                # The step before was to sample the last one, and did not.
                return f"the block's tokens are not known up to position {end}"
            keys = block.chain.around(block.block_index, block.token_ids)
            try:
                self._files.write(block.slot, keys, block.block_index, token_ids, self._host.memory(place))
            except OSError as error:
                return str(error)
            key = keys[-1]
        self._places.keep(block.slot, place, key)
        return None
