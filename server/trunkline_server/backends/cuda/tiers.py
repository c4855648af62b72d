"""The cuda backend's `Store`: blocks in pinned host memory, and on disk below it if there is one.

With a disk, slots are those of the disk, and pinned memory keeps the most recently used blocks. Without one, slots are
the places of pinned memory. See docs/decisions/0021-kv-tiers-on-the-device.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from trunkline_server._proto.shard_pb2 import Chunk, Restore, StoreContentsResponse, Transfers
from trunkline_server.backends.cuda.arrivals import MAX_UNFINISHED_BYTES, Arrival, Arrivals, LayerGates
from trunkline_server.backends.cuda.copies import GROUP_BYTES, STAGING_BYTES, CopyIn, CopyOut
from trunkline_server.backends.cuda.departures import BlockToStore, Departures, KeyChain, StepStores
from trunkline_server.backends.cuda.device import Device, Event
from trunkline_server.backends.cuda.kv_pool import KvPool
from trunkline_server.backends.cuda.outcomes import Outcomes
from trunkline_server.backends.cuda.places import PlaceTable
from trunkline_server.backends.cuda.runner import StepRunner
from trunkline_server.backends.cuda.step_input import Entry
from trunkline_server.backends.cuda.worker import Worker
from trunkline_server.backends.sequences import RunningSequence
from trunkline_server.backends.store_files import close_files, log_removed, read_contents, take_files_back
from trunkline_server.errors import PlanError

if TYPE_CHECKING:
    from trunkline_server._kernels import Store as BlockFiles

logger = logging.getLogger(__name__)

# From this many rows on, a step behind a restore waits layer by layer, since launching its operations one by one takes
# less time than computing them. A smaller step waits before it starts and is replayed.
MIN_LAYERED_ROWS = 512


class TieredStore:
    """Implements `Store`, and the hooks that the backend calls around steps. Outcomes may be taken by any thread.

    host: pinned memory of each block, [layers, piece_bytes] u8. files: the store on disk; extend_key: computes a
    block's key from the one before it, as the router does. make_worker and the sizes are for tests.
    """

    def __init__(
        self,
        device: Device,
        pool: KvPool,
        host: Sequence[torch.Tensor],
        *,
        files: BlockFiles | None = None,
        extend_key: Callable[[bytes, Sequence[int]], bytes] = lambda key, _: key,
        make_worker: Callable[[str, Callable[[BaseException], None]], Worker] = Worker,
        staging_bytes: int = STAGING_BYTES,
        group_bytes: int = GROUP_BYTES,
        max_unfinished_bytes: int = MAX_UNFINISHED_BYTES,
        min_layered_rows: int = MIN_LAYERED_ROWS,
    ) -> None:
        self._device, self._files, self._extend_key = device, files, extend_key
        self._block_size = pool.layout.block_size
        self._min_layered_rows = min_layered_rows
        copies_in = CopyIn(device, pool, staging_bytes, group_bytes)
        self._outcomes = Outcomes()
        self._places = PlaceTable(host, evicts=files is not None)
        names = ("kv-out", "kv-in", "kv-disk")
        writer, near, far = (make_worker(name, self._outcomes.fail) for name in names)
        self._departures = Departures(
            copies=CopyOut(device, pool, staging_bytes), places=self._places, outcomes=self._outcomes, worker=writer,
            files=files, block_size=self._block_size,
        )  # fmt: skip
        self._arrivals = Arrivals(
            copies=copies_in, places=self._places, outcomes=self._outcomes, near=near, far=far, files=files,
            blockers=self._departures.events_of, max_unfinished_bytes=max_unfinished_bytes,
        )  # fmt: skip
        self.gates = LayerGates(device, copies_in.groups)
        self._chains: dict[int, KeyChain] = {}

    def contents(self) -> Iterator[StoreContentsResponse]:
        return iter(()) if self._files is None else read_contents(self._files)

    def restore(self, restore: Restore) -> None:
        block_ids = {block.block_id for block in restore.blocks}
        if len(block_ids) < len(restore.blocks):
            raise PlanError(f"restore {restore.restore_id}: a block is restored twice")
        for block in restore.blocks:
            if self._departures.is_storing(block.slot):
                raise PlanError(f"restore {restore.restore_id}: slot {block.slot} is in a transfer")
        self._arrivals.begin(restore)

    def discard(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self._check_free(slot)
            self._places.drop(slot)
            if self._files is not None:
                try:
                    self._files.erase(slot)
                except OSError as error:
                    self._outcomes.warn(str(error))

    def take_outcomes(self) -> Transfers | None:
        if self._files is not None:
            log_removed(self._files)
        return self._outcomes.take()

    def wait_outcomes(self, timeout_s: float) -> None:
        self._outcomes.wait(timeout_s)

    def wake(self) -> None:
        self._outcomes.wake()

    def give_up(self) -> None:
        if self._files is not None:
            self._files.give_up()
            logger.info("KV block store handed over")

    def take_back(self) -> None:
        if self._files is not None:
            take_files_back(self._files)

    def sync(self) -> None:
        self._departures.worker.drain()
        close_files(self._files, self._outcomes.counts())

    def start(self, sequence_id: int, root_key: bytes) -> None:
        """Registers a sequence. Without a root key, its blocks are not stored."""
        if root_key:
            self._chains[sequence_id] = KeyChain(root_key, self._block_size, self._extend_key)

    def end(self, sequence_id: int) -> None:
        self._chains.pop(sequence_id, None)

    def check(self, chunks: Sequence[Chunk]) -> None:
        """Raises PlanError if the chunks contain an invalid store."""
        slots: set[int] = set()
        for chunk in chunks:
            for store in chunk.stores:
                if chunk.sequence_id not in self._chains:
                    raise PlanError(f"sequence {chunk.sequence_id} was started without a root key")
                end = (store.block_index + 1) * self._block_size
                if end > chunk.first_position + chunk.num_tokens:
                    raise PlanError(f"block {store.block_index} of sequence {chunk.sequence_id} is not full")
                if store.slot in slots:
                    raise PlanError(f"slot {store.slot} is stored twice")
                self._check_free(store.slot)
                slots.add(store.slot)

    def run(self, runner: StepRunner, entries: Sequence[Entry]) -> torch.Tensor:
        """Begins a step behind the transfers of its blocks."""
        if not self._departures.is_quiet():
            written: set[int] = set()
            for entry in entries:
                begin = entry.first_position // self._block_size
                end = -(-(entry.first_position + len(entry.token_ids)) // self._block_size)
                written.update(entry.block_ids[begin:end])
            self._wait(self._departures.events_of(written))
        arrivals: list[Arrival] = []
        if not self._arrivals.is_quiet():
            arrivals = self._arrivals.of({block_id for entry in entries for block_id in entry.block_ids})
        if not arrivals:
            return runner.run(entries)
        num_rows = sum(len(entry.token_ids) for entry in entries)
        if num_rows < self._min_layered_rows:
            self._wait(arrival.events[-1] for arrival in arrivals)
            return runner.run(entries)
        self.gates.arm(arrivals)
        try:
            return runner.run(entries, is_launched=True)
        finally:
            self.gates.arm(())

    def begin_stores(self, chunks: Sequence[tuple[Chunk, RunningSequence | None]]) -> StepStores | None:
        """Begins to copy blocks out behind the step that began last.

        chunks: each with its sequence, or None if it is not in the step.
        """
        blocks = []
        for chunk, sequence in chunks:
            chain = self._chains[chunk.sequence_id]
            for store in chunk.stores:
                block_id = None if sequence is None else sequence.block_ids[store.block_index]
                token_ids = [] if sequence is None else sequence.token_ids
                blocks.append(
                    BlockToStore(chunk.sequence_id, store.slot, store.block_index, block_id, token_ids, chain)
                )
        return self._departures.begin(blocks) if blocks else None

    def end_stores(self, stores: StepStores, failed: Collection[int]) -> None:
        """Finishes stores once the step's outcomes are known. failed: sequences whose chunks failed in it."""
        self._departures.end(stores, failed)

    def enter_copy(self, source_block_id: int, destination_block_id: int) -> None:
        """Waits on the device for transfers of two blocks before one is copied onto the other within the pool."""
        self._wait(self._departures.events_of({destination_block_id}))
        arrivals = self._arrivals.of({source_block_id, destination_block_id})
        self._wait(arrival.events[-1] for arrival in arrivals)

    def leave_copy(self) -> None:
        """Makes later restores wait for a copy within the pool, which no step result reports."""
        self._arrivals.copies.follow(self._device.steps.mark())

    def reset(self) -> None:
        """Ends transfers and drops their outcomes and all sequences. Without a disk, stored blocks are dropped too."""
        self._arrivals.reset()
        self._departures.reset()
        self._outcomes.forget()
        self._chains.clear()
        if self._files is None:
            self._places.clear()

    def _check_free(self, slot: int) -> None:
        if self._departures.is_storing(slot) or self._arrivals.is_reading(slot):
            raise PlanError(f"slot {slot} is in a transfer")

    def _wait(self, events: Iterable[Event]) -> None:
        for event in events:
            self._device.steps.wait_for(event)
