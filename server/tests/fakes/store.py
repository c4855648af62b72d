"""A store without a disk for the fake backend. Transfers end when they begin, or when the test says so."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence

from trunkline_server._proto.shard_pb2 import Restore, RestoreOutcome, StoreContentsResponse, StoreOutcome, Transfers
from trunkline_server.errors import PlanError

NUM_SLOTS = 4


def block_key(root_key: bytes, token_ids: Sequence[int], block_size: int) -> bytes:
    """Returns a key for the last block of `token_ids`. Like the kernels' keys, it depends on all tokens so far."""
    key = root_key
    for first in range(0, len(token_ids), block_size):
        key = hashlib.blake2b(key + bytes(token_ids[first : first + block_size]), digest_size=16).digest()
    return key


class FakeStore:
    """Implements `Store` over a pool of digests.

    is_slow: outcomes of stores come with `end_slow_stores`, as from a slow disk. fails: the records cannot be read.
    """

    def __init__(self, pool: list[list[int | None]]) -> None:
        self.slots: dict[int, tuple[bytes, list[int | None]]] = {}
        self.is_slow = False
        self.fails = False
        self.num_syncs = 0
        self._pool = pool
        self._slow: list[StoreOutcome] = []
        self._stores: list[StoreOutcome] = []
        self._restores: list[RestoreOutcome] = []
        self._event = threading.Condition()
        self._is_woken = False

    def store(self, slot: int, key: bytes, block_id: int) -> None:
        self.slots[slot] = key, list(self._pool[block_id])
        with self._event:
            (self._slow if self.is_slow else self._stores).append(StoreOutcome(slot=slot, is_stored=True))

    def fail_store(self, slot: int) -> None:
        """Reports that the store of a failed chunk did not happen."""
        with self._event:
            self._stores.append(StoreOutcome(slot=slot, is_stored=False))

    def end_slow_stores(self) -> None:
        with self._event:
            self._stores, self._slow = self._slow, []
            self._event.notify_all()

    def contents(self) -> Iterator[StoreContentsResponse]:
        """Yields two blocks at a time. All are the first of their paths; the fake keeps no parents."""
        if self.fails:
            raise OSError("the disk is on fire")
        slots = sorted(self.slots)
        for piece in (slots[first : first + 2] for first in range(0, len(slots), 2)):
            keys = b"".join(self.slots[slot][0] for slot in piece)
            yield StoreContentsResponse(
                slots=piece, keys=keys, parent_keys=bytes(len(keys)), depths=[0] * len(piece), sequences=piece
            )

    def restore(self, restore: Restore) -> None:
        num_blocks = 0
        for block in restore.blocks:
            key, digests = self.slots.get(block.slot, (b"", []))
            if key != block.key:
                break
            self._pool[block.block_id][:] = digests
            num_blocks += 1
        with self._event:
            self._restores.append(RestoreOutcome(restore_id=restore.restore_id, num_blocks=num_blocks))
            self._event.notify_all()

    def discard(self, slots: Sequence[int]) -> None:
        if any(outcome.slot in slots for outcome in self._slow):
            raise PlanError("discard: a slot is in another transfer")
        for slot in slots:
            self.slots.pop(slot, None)

    def take_outcomes(self) -> Transfers | None:
        with self._event:
            stores, self._stores = self._stores, []
            restores, self._restores = self._restores, []
        return Transfers(stores=stores, restores=restores) if stores or restores else None

    def wait_outcomes(self, timeout_s: float) -> None:
        with self._event:
            self._event.wait_for(lambda: self._is_woken or self._stores or self._restores, timeout_s)
            self._is_woken = False

    def wake(self) -> None:
        with self._event:
            self._is_woken = True
            self._event.notify_all()

    def give_up(self) -> None:
        pass

    def take_back(self) -> None:
        pass

    def sync(self) -> None:
        self.num_syncs += 1

    def forget(self) -> None:
        """Drops all outcomes, as the backend's `reset` does."""
        with self._event:
            self._slow, self._stores, self._restores = [], [], []
