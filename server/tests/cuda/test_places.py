"""Which places are free, and that who waits for one is told."""

from __future__ import annotations

import threading

from trunkline_server.backends.cuda.places import PlaceTable

# Longest wait for another thread; reached only by a failure.
DEADLINE_S = 20.0


def test_who_waits_for_a_place_gets_one_that_is_kept_when_its_last_pin_goes() -> None:
    """It is not free then, but may be evicted."""
    table = PlaceTable(1, evicts=True)
    place = table.take(0)
    assert place is not None
    table.keep(0, place, b"")
    is_asking = threading.Event()
    taken: list[int | None] = []

    def is_over() -> bool:
        # Asked with the table's lock, which is let go by waiting alone.
        is_asking.set()
        return False

    waiter = threading.Thread(target=lambda: taken.append(table.take_when_free(1, is_over)), daemon=True)
    waiter.start()
    assert is_asking.wait(DEADLINE_S)
    table.unpin([place])
    waiter.join(DEADLINE_S)
    assert taken == [place]
