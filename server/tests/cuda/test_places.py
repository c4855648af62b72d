"""Free places, and waiting for one."""

from __future__ import annotations

import threading

import torch
from trunkline_server.backends.cuda.places import PlaceTable

# Longest wait for another thread; only a failure reaches it.
DEADLINE_S = 20.0


def test_a_waiter_gets_a_kept_place_when_its_last_pin_ends() -> None:
    """The place is not free then, but it may be evicted."""
    table = PlaceTable([torch.zeros(1)], evicts=True)
    place = table.take(0)
    assert place is not None
    table.keep(0, place, b"")
    is_asking = threading.Event()
    taken: list[int | None] = []

    def is_over() -> bool:
        # Called with the table's lock, which only waiting releases.
        is_asking.set()
        return False

    waiter = threading.Thread(target=lambda: taken.append(table.take(1, is_over)), daemon=True)
    waiter.start()
    assert is_asking.wait(DEADLINE_S)
    table.unpin([place])
    waiter.join(DEADLINE_S)
    assert taken == [place]
