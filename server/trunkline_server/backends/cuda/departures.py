"""Copies blocks out of the pool: into pinned memory as soon as their step has computed them, then onto the disk.

    begin (behind the step) ─▶ end (outcomes are known) ─▶ in pinned memory ─▶ written, if there is a disk ─▶
reported
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from trunkline_server.backends.cuda.copies import CopyOut
from trunkline_server.backends.cuda.device import Event
from trunkline_server.backends.cuda.outcomes import Outcomes
from trunkline_server.backends.cuda.places import PlaceTable
from trunkline_server.backends.cuda.worker import Worker

if TYPE_CHECKING:
    from trunkline_server._kernels import Store as BlockFiles

# Longest wait of a step for its blocks to reach the disk. If they do, their outcome is sent with the step's result, and
# the router can use them from then on. A slower disk delays no step.
STORE_WAIT_S = 0.01
# Share of all places that may wait for the disk; the others are left to restores.
MAX_WAITING_PART = 0.5


class KeyChain:
    """The keys of a sequence's blocks, on demand. extend: computes a key from the one before and a block's tokens."""

    def __init__(self, root: bytes, block_size: int, extend: Callable[[bytes, Sequence[int]], bytes]) -> None:
        self._keys = [root]
        self._block_size = block_size
        self._extend = extend

    def around(self, index: int, token_ids: Sequence[int]) -> tuple[bytes, bytes, bytes]:
        """Returns the root key, the key before block `index`, and that block's key. All its tokens must be known."""
        while len(self._keys) <= index + 1:
            begin = (len(self._keys) - 1) * self._block_size
            self._keys.append(self._extend(self._keys[-1], token_ids[begin : begin + self._block_size]))
        return self._keys[0], self._keys[index], self._keys[index + 1]


@dataclass(slots=True, eq=False)
class BlockToStore:
    """A block that a step stores.

    token_ids: the sequence's, which may grow until the step has ended; block_id: None if the block was not computed.
    place: None if there was no room.
    """

    sequence_id: int
    slot: int
    block_index: int
    block_id: int | None
    token_ids: Sequence[int]
    chain: KeyChain
    place: int | None = None


@dataclass(slots=True, eq=False)
class StepStores:
    """The stores of one step. event: reached when its blocks are copied; None if none is."""

    blocks: Sequence[BlockToStore]
    event: Event | None = None


@dataclass(kw_only=True, eq=False)
class Departures:
    """Runs stores. Called by the thread of the steps, except for `events_of` and the worker's tasks."""

    copies: CopyOut
    places: PlaceTable
    outcomes: Outcomes
    worker: Worker
    files: BlockFiles | None
    block_size: int

    def __post_init__(self) -> None:
        part = MAX_WAITING_PART if self.files is not None else 1
        self._most_waiting = max(1, int(len(self.places.blocks) * part))
        self._changed = threading.Condition()
        # Slots of unfinished stores.
        self._slots: set[int] = set()
        self._num_waiting = 0
        self._begun: list[StepStores] = []
        # Copies that may be under way, and the blocks that they read.
        self._leaving: deque[tuple[Event, frozenset[int]]] = deque()

    def is_storing(self, slot: int) -> bool:
        """Returns True while a store into the slot is unfinished."""
        with self._changed:
            return slot in self._slots

    def is_quiet(self) -> bool:
        """Returns True if no copy can be under way. Cheap."""
        return not self._leaving

    def events_of(self, block_ids: Collection[int]) -> list[Event]:
        """Returns the events that must be reached before these blocks may be written. May be called from any thread."""
        with self._changed:
            while self._leaving and self._leaving[0][0].is_reached():
                self._leaving.popleft()
            return [event for event, blocks in self._leaving if not blocks.isdisjoint(block_ids)]

    def begin(self, blocks: Sequence[BlockToStore]) -> StepStores:
        """Begins to copy blocks of the step that began last. Their slots must not be in a transfer."""
        stores = StepStores(blocks)
        copied = []
        for block in blocks:
            with self._changed:
                has_room = len(self._slots) < self._most_waiting
                self._slots.add(block.slot)
            # The slot's old contents are lost in any case.
            self.places.drop(block.slot)
            if block.block_id is not None and has_room:
                block.place = self.places.take(block.slot)
                if block.place is not None:
                    copied.append((block.block_id, self.places.blocks[block.place]))
        if copied:
            stores.event = self.copies.begin(copied)
            with self._changed:
                self._leaving.append((stores.event, frozenset(block_id for block_id, _ in copied)))
        self._begun.append(stores)
        return stores

    def end(self, stores: StepStores, failed: Collection[int]) -> None:
        """Finishes stores once the step's outcomes, and so all tokens, are known. failed: sequences whose blocks are
        dropped.

        Waits up to `STORE_WAIT_S` for the disk, unless it was already behind.
        """
        self._begun.remove(stores)
        with self._changed:
            is_behind = self._num_waiting > 0
            self._num_waiting += len(stores.blocks)
        for block in stores.blocks:
            is_failed = block.block_id is None or block.sequence_id in failed
            self.worker.post(partial(self._finish, block, stores.event, is_failed))
        if self.files is not None and not is_behind:
            with self._changed:
                self._changed.wait_for(lambda: self._num_waiting == 0, STORE_WAIT_S)

    def reset(self) -> None:
        """Finishes stores that have ended, drops the others, and waits until nothing is under way."""
        for stores in self._begun:
            if stores.event is not None:
                stores.event.wait()
            self.places.unpin([block.place for block in stores.blocks if block.place is not None])
            with self._changed:
                self._slots -= {block.slot for block in stores.blocks}
        self._begun.clear()
        self.worker.drain()

    def _finish(self, block: BlockToStore, event: Event | None, is_failed: bool) -> None:
        if event is not None:
            event.wait()
        problem: str | None
        if is_failed:
            problem = "the block was not computed"
        elif block.place is None:
            problem = f"more than {self._most_waiting} blocks wait for the disk, or all pinned memory is in use"
        else:
            problem = self._keep(block, block.place)
        if block.place is not None:
            self.places.unpin([block.place])
        with self._changed:
            self._slots.discard(block.slot)
            self.outcomes.add_store(block.slot, problem)
            self._num_waiting -= 1
            self._changed.notify_all()

    def _keep(self, block: BlockToStore, place: int) -> str | None:
        """Writes a block from its place to the disk, if there is one. Returns what went wrong, or None."""
        key = b""
        if self.files is not None:
            begin, end = block.block_index * self.block_size, (block.block_index + 1) * self.block_size
            token_ids = block.token_ids[begin:end]
            if len(token_ids) < self.block_size:
                # The step before was to sample the last one but did not.
                return f"the block's tokens are not known up to position {end}"
            keys = block.chain.around(block.block_index, block.token_ids)
            try:
                self.files.write(block.slot, keys, block.block_index, token_ids, self.places.memory(place))
            except OSError as error:
                return str(error)
            key = keys[-1]
        self.places.keep(block.slot, place, key)
        return None
