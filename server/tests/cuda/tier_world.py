"""A miniature router and model over the tiers: blocks have known bytes, which every step checks as it reads them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import Any

import torch
from tests.cuda.kv_oracle import make_pool
from tests.cuda.lazy_device import InlineWorker, LazyDevice
from tests.plans import new_block_restore, new_chunk, new_restore, new_store
from trunkline_server.backends.cuda.departures import StepStores
from trunkline_server.backends.cuda.device import Event
from trunkline_server.backends.cuda.host_pool import pinned_blocks
from trunkline_server.backends.cuda.step_input import Entry
from trunkline_server.backends.cuda.tiers import TieredStore
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.sequences import RunningSequence

BLOCK_SIZE = 16
NUM_LAYERS = 5
NUM_BLOCKS = 12
SEQUENCE_ID = 1


def content(number: int, layer: int, num_bytes: int) -> torch.Tensor:
    """Returns the content of one piece, different for each block and layer."""
    generator = torch.Generator().manual_seed(1000 * number + layer)
    return torch.randint(0, 256, (num_bytes,), generator=generator, dtype=torch.uint8)


@dataclass
class MemoryFiles:
    """A disk that fails and loses blocks at random."""

    chance: random.Random
    blocks: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    num_reads: int = 0
    refuses: float = 0.1
    loses: float = 0.1

    def write(self, slot: int, keys: Sequence[bytes], depth: int, token_ids: Sequence[int], memory: memoryview) -> None:
        self.blocks.pop(slot, None)
        if self.chance.random() < self.refuses:
            raise OSError("the disk is full")
        if self.chance.random() >= self.loses:
            self.blocks[slot] = keys[2], bytes(memory)

    def read(self, blocks: Sequence[tuple[int, bytes, memoryview]]) -> tuple[int, str | None]:
        for number, (slot, key, memory) in enumerate(blocks):
            self.num_reads += 1
            found = self.blocks.get(slot)
            if found is None or found[0] != key:
                return number, f"slot {slot} is empty"
            memory[:] = found[1]
        return len(blocks), None

    def erase(self, slot: int) -> None:
        self.blocks.pop(slot, None)

    def take_removed(self) -> list[tuple[PathLike[str], int, str | None]]:
        return []


def extend_key(key: bytes, token_ids: Sequence[int]) -> bytes:
    """Computes a key from the token ids that name a content; see `Step`."""
    return b"%15d" % token_ids[0]


class OthersGoOn(threading.Condition):
    """A condition on which waiting makes other threads run; if none can, the test reports a deadlock."""

    def __init__(self, go_on: Callable[[], bool]) -> None:
        super().__init__()
        self._go_on = go_on

    def wait(self, timeout: float | None = None) -> bool:
        assert self._go_on(), "nobody is left who could free a place"
        return True


@dataclass
class Step:
    """A step in flight. written: block id and content, in order; read: the same; stores: (index in written, slot)."""

    written: list[tuple[int, int]]
    read: list[tuple[int, int]]
    event: Event
    stores: StepStores | None
    stored: list[tuple[int, int]]
    fails: bool


class World:
    """The router's knowledge. Blocks map to a content, or to None if free; blocks in transfer are in neither.

    most_restored: most blocks of one restore.
    """

    def __init__(
        self, seed: int, *, num_places: int, num_slots: int | None, most_restored: int = 2, **sizes: Any
    ) -> None:
        self.chance = random.Random(seed)
        self._most_restored = most_restored
        # With odd seeds, the device does nothing by itself.
        self.device = LazyDevice(None if seed % 2 else seed, is_main_lazy=True)
        self.pool = make_pool(
            "int4", self.device.torch_device, num_layers=NUM_LAYERS, num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE,
            num_kv_heads=1, head_size=16,
        )  # fmt: skip
        # Pieces of pinned memory are powers of two.
        self.host = pinned_blocks(
            num_places << (self.pool.bytes_per_block - 1).bit_length(), num_layers=NUM_LAYERS,
            piece_bytes=self.pool.layout.piece_bytes, pin=self.device.pinned_bytes, available_bytes=1 << 40,
        )  # fmt: skip
        assert len(self.host) == num_places
        self.files = None if num_slots is None else MemoryFiles(self.chance)
        self.workers: list[InlineWorker] = []

        def make_worker(name: str, on_bug: Callable[[BaseException], None]) -> InlineWorker:
            self.workers.append(InlineWorker(name, on_bug))
            return self.workers[-1]

        self.tiers = TieredStore(
            self.device, self.pool, self.host, files=self.files,  # type: ignore[arg-type]
            extend_key=extend_key, make_worker=make_worker, **sizes,
        )  # fmt: skip
        self.tiers._places._changed = OthersGoOn(self._go_on)
        self.num_contents = 0
        self.blocks: dict[int, int] = {}
        self.free = list(range(NUM_BLOCKS))
        self.slots: dict[int, int] = {}
        self.free_slots = list(range(num_slots or num_places))
        self.storing: dict[int, int] = {}
        self.restores: dict[int, list[tuple[int, int, int]]] = {}
        self.steps: list[Step] = []
        self.num_restores = self.num_restored = self.num_read = 0

    def worker(self, name: str) -> InlineWorker:
        (found,) = [worker for worker in self.workers if worker.name == name]
        return found

    def fill_disk(self, count: int) -> None:
        """Fills the disk with blocks from an earlier shard, none of them in a place."""
        assert self.files is not None
        for slot in self.free_slots[:count]:
            pieces = [content(self.num_contents, layer, self.pool.layout.piece_bytes) for layer in range(NUM_LAYERS)]
            self.files.blocks[slot] = b"%15d" % self.num_contents, bytes(torch.cat(pieces).numpy())
            self.slots[slot] = self.num_contents
            self.num_contents += 1
        del self.free_slots[:count]

    def _go_on(self) -> bool:
        """Does the work of other threads while one waits for a place. Returns False if there is nothing left to do."""
        idle = [worker for worker in self.workers if not worker.is_busy]
        if any(worker.do_one() for worker in self.chance.sample(idle, len(idle))):
            return True
        if self.steps:
            self.finish_step()
            return True
        return False

    def run(self, entries: Sequence[Entry], *, is_launched: bool = False) -> torch.Tensor:
        """Replaces `StepRunner.run`: writes an entry's blocks from the one in which it begins, and reads all others."""
        for layer in range(NUM_LAYERS):
            if is_launched:
                self.tiers.gates.enter(layer)
            self.device.steps.run(partial(self._layer, layer, self._read, self._written))
        return torch.zeros(0)

    def _layer(self, layer: int, read: list[tuple[int, int]], written: list[tuple[int, int]]) -> None:
        pieces = self.pool.pieces[layer]
        for block_id, number in read:
            expected = content(number, layer, pieces.shape[1]).to(pieces.device)
            assert torch.equal(pieces[block_id], expected), f"block {block_id} of layer {layer} is not {number}"
            self.num_read += 1
        for block_id, number in written:
            pieces[block_id] = content(number, layer, pieces.shape[1]).to(pieces.device)

    def in_flight(self) -> set[int]:
        return {block_id for step in self.steps for block_id, _ in [*step.written, *step.read]}

    def begin_step(self, num_written: int, num_read: int, num_stored: int) -> None:
        written = []
        for block_id in self.free[:num_written]:
            written.append((block_id, self.num_contents))
            self.num_contents += 1
        del self.free[:num_written]
        held = list(self.blocks.items())
        read = self.chance.sample(held, min(num_read, len(held)))
        if not written and not read:
            return
        blocks = [block_id for block_id, _ in [*read, *written]]
        token_ids = [0] * BLOCK_SIZE * len(read) + [number for _, number in written for _ in range(BLOCK_SIZE)]
        first = BLOCK_SIZE * len(read)
        num_tokens = BLOCK_SIZE * len(written)
        if not written:
            # A decode at the end of the last block that is read: the block is written with its own content.
            first, num_tokens = first - 1, 1
        stored = []
        for index in range(min(num_stored, len(written))):
            slot = self._take_slot()
            if slot is not None:
                stored.append((index, slot))
                self.storing[slot] = written[index][1]
        chunk = new_chunk(
            SEQUENCE_ID, first, num_tokens, [], False, [new_store(len(read) + index, slot) for index, slot in stored]
        )
        # Restarted, because the store would keep the keys of another sequence's blocks and find nothing by them.
        self.tiers.start(SEQUENCE_ID, bytes(16))
        self.tiers.check([chunk])
        self._read, self._written = read, written
        self.tiers.run(self, [Entry(token_ids[first:], first, blocks, [])])  # type: ignore[arg-type]
        stores = self.tiers.begin_stores([(chunk, RunningSequence(token_ids, 0, sampling_params(), blocks))])
        self.steps.append(Step(written, read, self.device.steps.mark(), stores, stored, self.chance.random() < 0.1))

    def finish_step(self) -> None:
        step = self.steps.pop(0)
        step.event.wait()
        if step.stores is not None:
            self.tiers.end_stores(step.stores, {SEQUENCE_ID} if step.fails else ())
        if step.fails:
            self.free.extend(block_id for block_id, _ in step.written)
        else:
            self.blocks.update(step.written)

    def _take_slot(self) -> int | None:
        if self.free_slots:
            return self.free_slots.pop(self.chance.randrange(len(self.free_slots)))
        read = {slot for blocks in self.restores.values() for slot, _, _ in blocks}
        evictable = [slot for slot in self.slots if slot not in read]
        if not evictable:
            return None
        slot = self.chance.choice(evictable)
        del self.slots[slot]
        return slot

    def free_block(self) -> None:
        free = [block_id for block_id in self.blocks if block_id not in self.in_flight()]
        if free:
            block_id = self.chance.choice(free)
            del self.blocks[block_id]
            self.free.insert(self.chance.randrange(len(self.free) + 1), block_id)

    def copy_block(self) -> None:
        if not self.blocks or not self.free:
            return
        source, destination = self.chance.choice(list(self.blocks)), self.free.pop()
        self.tiers.enter_copy(source, destination)
        pieces = self.pool.pieces
        self.device.steps.run(lambda: pieces[:, destination].copy_(pieces[:, source]))
        self.tiers.leave_copy()
        self.blocks[destination] = self.blocks[source]

    def begin_restore(self, most: int) -> None:
        read = {slot for blocks in self.restores.values() for slot, _, _ in blocks}
        slots = [slot for slot in self.slots if slot not in read]
        count = min(most, len(slots), len(self.free))
        if count == 0:
            return
        blocks = [(slot, self.free.pop(), self.slots[slot]) for slot in self.chance.sample(slots, count)]
        self.num_restores += 1
        self.restores[self.num_restores] = blocks
        wanted = [new_block_restore(slot, block_id, b"%15d" % number) for slot, block_id, number in blocks]
        self.tiers.restore(new_restore(self.num_restores, wanted))

    def discard(self) -> None:
        read = {slot for blocks in self.restores.values() for slot, _, _ in blocks}
        slots = [slot for slot in self.slots if slot not in read]
        if slots:
            slot = self.chance.choice(slots)
            self.tiers.discard([slot])
            del self.slots[slot]
            self.free_slots.append(slot)

    def take_outcomes(self) -> None:
        transfers = self.tiers.take_outcomes()
        if transfers is None:
            return
        for outcome in transfers.stores:
            number = self.storing.pop(outcome.slot)
            if outcome.is_stored:
                self.slots[outcome.slot] = number
            else:
                self.free_slots.append(outcome.slot)
        for restored in transfers.restores:
            blocks = self.restores.pop(restored.restore_id)
            for index, (slot, block_id, number) in enumerate(blocks):
                if index < restored.num_blocks:
                    self.blocks[block_id] = number
                    self.num_restored += 1
                else:
                    self.free.append(block_id)
                if index == restored.num_blocks:
                    # A damaged block is not found again.
                    self.slots.pop(slot)
                    self.free_slots.append(slot)

    def settle(self) -> None:
        """Runs until nothing is in flight."""
        while self.steps:
            self.finish_step()
        for worker in self.workers:
            worker.drain()
        self.take_outcomes()
        assert not self.storing and not self.restores

    def do_something(self) -> None:
        actions: list[Callable[[], object]] = [
            lambda: self.begin_step(self.chance.randrange(4), self.chance.randrange(4), self.chance.randrange(4)),
            self.finish_step,
            self.free_block,
            self.copy_block,
            lambda: self.begin_restore(self._most_restored),
            self.discard,
            self.take_outcomes,
            lambda: self.chance.choice(self.workers).do_one(),
            self.device.make_progress,
        ]
        action = self.chance.choices(range(len(actions)), (6, 6, 6, 1, 6, 0.3, 6, 12, 4))[0]
        if (action == 0 and len(self.steps) == 2) or (action == 4 and len(self.restores) == 2):
            return
        if action == 1 and not self.steps:
            return
        actions[action]()
