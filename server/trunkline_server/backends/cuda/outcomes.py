"""What became of transfers, until the engine loop takes it."""

from __future__ import annotations

import logging
import threading
import time

from trunkline_server.backends.interface import RestoreOutcome, StoreOutcome, Transfers

logger = logging.getLogger(__name__)

# At most one line in this time: a full disk must not fill the log as well.
WARNING_INTERVAL_S = 60.0


class Outcomes:
    """Filled by the threads of the tiers. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stores: list[StoreOutcome] = []
        self._restores: list[RestoreOutcome] = []
        self._is_woken = False
        self._bug: BaseException | None = None
        self._trouble = ""
        self._num_troubles = 0
        self._warned_at = -WARNING_INTERVAL_S
        self._counts = {"stored": 0, "not_stored": 0, "restored": 0, "not_restored": 0}

    def add_store(self, slot: int, problem: str | None) -> None:
        """A store is over; problem: why it failed, if it did."""
        with self._changed:
            self._counts["stored" if problem is None else "not_stored"] += 1
            self._stores.append(StoreOutcome(slot, problem is None))
            self._note(problem)
            self._changed.notify_all()

    def add_restore(self, outcome: RestoreOutcome, problem: str | None) -> None:
        """A restore is over; problem: why it ended before its last block, if it did."""
        with self._changed:
            self._counts["restored"] += outcome.num_blocks
            self._counts["not_restored"] += problem is not None
            self._restores.append(outcome)
            self._note(problem)
            self._changed.notify_all()

    def note(self, problem: str) -> None:
        """Something to warn of."""
        with self._changed:
            self._note(problem)

    def fail(self, bug: BaseException) -> None:
        """What no plan may cause: the next `take` raises it."""
        with self._changed:
            self._bug = self._bug or bug
            self._changed.notify_all()

    def _note(self, problem: str | None) -> None:
        if problem is not None:
            self._trouble = problem
            self._num_troubles += 1

    def take(self) -> Transfers | None:
        """Those since the last call; None if there are none."""
        with self._changed:
            if self._bug is not None:
                raise self._bug
            if not self._stores and not self._restores:
                return None
            transfers = Transfers(self._stores, self._restores)
            self._stores, self._restores = [], []
            self._warn()
            return transfers

    def _warn(self) -> None:
        now = time.monotonic()
        if self._num_troubles and now - self._warned_at >= WARNING_INTERVAL_S:
            others = f", and {self._num_troubles - 1} more failures before it" if self._num_troubles > 1 else ""
            logger.warning("a block was not stored or restored: %s%s", self._trouble, others)
            self._warned_at, self._num_troubles = now, 0

    def wait(self, timeout_s: float) -> None:
        """Returns when there are outcomes, the time is over, or `wake` was called."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_woken or self._stores or self._restores or self._bug is not None, timeout_s
            )
            self._is_woken = False

    def wake(self) -> None:
        """Lets `wait` return, now or at its next call."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def forget(self) -> None:
        """Outcomes that nobody took are told to nobody."""
        with self._changed:
            self._stores, self._restores = [], []

    def counts(self) -> dict[str, int]:
        """Blocks so far."""
        with self._changed:
            return dict(self._counts)
