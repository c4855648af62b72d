"""Tracks which slot's block lies in which place of the pinned memory, and which places are in use.

        take ──▶ pinned, of no slot ──keep──▶ found by its slot ──▶ evicted for another, dropped, or replaced
                                      └──unpin──▶ free

A pinned place is being read or written by the device or the disk. It is not reused before its last pin is gone.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

import torch

from trunkline_server.backends.cuda.device import Event


class PlaceTable:
    """The table of places. All methods may be called from any thread.

    blocks: the memory of each place, [layers, piece_bytes] u8. evicts: the least recently used slot's block may be
    evicted for another, because blocks are on disk as well. Without it, only the owner of the slots frees them.
    """

    def __init__(self, blocks: Sequence[torch.Tensor], *, evicts: bool) -> None:
        self.blocks = blocks
        num_places = len(blocks)
        self._evicts = evicts
        self._changed = threading.Condition()
        self._free = list(range(num_places))[::-1]
        self._pins = [0] * num_places
        self._is_kept = [False] * num_places
        # Maps a slot to (place, key), the least recently used first.
        self._by_slot: dict[int, tuple[int, bytes]] = {}
        # Pins that end when an event of the device is reached, in order.
        self._pinned_until: deque[tuple[Event, Sequence[int]]] = deque()

    def memory(self, place: int) -> memoryview:
        """Returns the bytes of a place."""
        return self.blocks[place].view(-1).numpy().data

    def take(self, slot: int, gives_up: Callable[[], bool] = lambda: True) -> int | None:
        """Returns a pinned place for new contents of a slot and forgets its old ones.

        If all places are in use, waits for one. Returns None if `gives_up` is true, which `wake` has it check again.
        """
        while True:
            with self._changed:
                self._drop(slot)
                place = self._take()
                if place is not None or gives_up():
                    return place
                if not self._pinned_until:
                    self._changed.wait()
                    continue
                event = self._pinned_until[0][0]
            event.wait()

    def keep(self, slot: int, place: int, key: bytes) -> None:
        """Makes the place, which stays pinned, hold the slot's block."""
        with self._changed:
            self._drop(slot)
            self._by_slot[slot] = place, key
            self._is_kept[place] = True

    def find(self, slot: int, key: bytes | None) -> int | None:
        """Returns the slot's place, pinned, or None if there is none. key: of the expected block; None accepts any."""
        with self._changed:
            found = self._by_slot.get(slot)
            if found is None or (key is not None and found[1] != key):
                return None
            place = found[0]
            self._by_slot[slot] = self._by_slot.pop(slot)
            self._pins[place] += 1
            return place

    def unpin(self, places: Sequence[int]) -> None:
        """Removes one pin from each place."""
        with self._changed:
            self._unpin(places)

    def unpin_after(self, event: Event, places: Sequence[int]) -> None:
        """Removes one pin from each place once the event is reached."""
        with self._changed:
            self._pinned_until.append((event, places))
            self._changed.notify_all()

    def drop(self, slot: int) -> None:
        """Forgets the block of a slot."""
        with self._changed:
            self._drop(slot)

    def clear(self) -> None:
        """Forgets the blocks of all slots."""
        with self._changed:
            for slot in list(self._by_slot):
                self._drop(slot)

    def wake(self) -> None:
        """Makes calls of `take` check `gives_up` again."""
        with self._changed:
            self._changed.notify_all()

    def num_pinned(self) -> int:
        """Returns the number of places in use."""
        with self._changed:
            self._collect()
            return sum(pins > 0 for pins in self._pins)

    def _take(self) -> int | None:
        self._collect()
        if not self._free and self._evicts:
            oldest = next((slot for slot, (place, _) in self._by_slot.items() if self._pins[place] == 0), None)
            if oldest is not None:
                self._drop(oldest)
        if not self._free:
            return None
        place = self._free.pop()
        self._pins[place] = 1
        return place

    def _collect(self) -> None:
        """Removes pins whose event is reached; those behind an unreached one wait for it."""
        while self._pinned_until and self._pinned_until[0][0].is_reached():
            self._unpin(self._pinned_until.popleft()[1])

    def _drop(self, slot: int) -> None:
        found = self._by_slot.pop(slot, None)
        if found is not None:
            self._is_kept[found[0]] = False
            self._free_if_unused(found[0])

    def _unpin(self, places: Sequence[int]) -> None:
        for place in places:
            assert self._pins[place] > 0, "more unpins than pins"
            self._pins[place] -= 1
            self._free_if_unused(place)

    def _free_if_unused(self, place: int) -> None:
        if self._pins[place] > 0:
            return
        if not self._is_kept[place]:
            self._free.append(place)
        # Also for a kept place, which can be evicted now.
        self._changed.notify_all()
