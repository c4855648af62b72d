"""Collects outcomes of transfers for the engine loop."""

from __future__ import annotations

import logging
import threading
import time

from trunkline_server._proto.shard_pb2 import RestoreOutcome, Transfers

logger = logging.getLogger(__name__)

# Minimum time between two warnings, so that a full disk does not fill the log as well.
WARNING_INTERVAL_S = 60.0


class Outcomes:
    """Outcomes that the threads of the tiers add and the engine loop takes. All methods are thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._transfers = Transfers()
        self._is_woken = False
        self._bug: BaseException | None = None
        self._warned_at = -WARNING_INTERVAL_S
        self._counts = {"stored": 0, "not_stored": 0, "restored": 0, "not_restored": 0}

    def add_store(self, slot: int, problem: str | None) -> None:
        """Adds the outcome of a store. problem: why it failed, or None."""
        with self._changed:
            self._counts["stored" if problem is None else "not_stored"] += 1
            self._transfers.stores.add(slot=slot, is_stored=problem is None)
            self.warn(problem)
            self._changed.notify_all()

    def add_restore(self, outcome: RestoreOutcome, problem: str | None) -> None:
        """Adds the outcome of a restore. problem: why it ended before its last block, or None."""
        with self._changed:
            self._counts["restored"] += outcome.num_blocks
            self._counts["not_restored"] += problem is not None
            self._transfers.restores.append(outcome)
            self.warn(problem)
            self._changed.notify_all()

    def fail(self, bug: BaseException) -> None:
        """Notes an exception that no plan can cause; the next `take` raises it."""
        with self._changed:
            self._bug = self._bug or bug
            self._changed.notify_all()

    def warn(self, problem: str | None) -> None:
        """Logs a problem, unless it is None or another one was logged less than `WARNING_INTERVAL_S` ago."""
        with self._changed:
            now = time.monotonic()
            if problem is not None and now - self._warned_at >= WARNING_INTERVAL_S:
                self._warned_at = now
                logger.warning("a block was not stored or restored: %s", problem)

    def take(self) -> Transfers | None:
        """Returns the outcomes since the last call; None if there are none."""
        with self._changed:
            if self._bug is not None:
                raise self._bug
            if not self._has_any():
                return None
            transfers, self._transfers = self._transfers, Transfers()
            return transfers

    def wait(self, timeout_s: float) -> None:
        """Waits for outcomes, for the time limit, or for `wake`."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_woken or self._has_any() or self._bug is not None, timeout_s)
            self._is_woken = False

    def wake(self) -> None:
        """Makes `wait` return, now or at its next call."""
        with self._changed:
            self._is_woken = True
            self._changed.notify_all()

    def forget(self) -> None:
        """Drops outcomes that have not been taken."""
        with self._changed:
            self._transfers = Transfers()

    def counts(self) -> dict[str, int]:
        """Returns the numbers of blocks stored, not stored, restored and not restored so far."""
        with self._changed:
            return dict(self._counts)

    def _has_any(self) -> bool:
        return bool(self._transfers.stores) or bool(self._transfers.restores)
