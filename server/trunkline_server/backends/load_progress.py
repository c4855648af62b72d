"""Tells the launcher how much of a model's weights is loaded."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from trunkline_server.backends.interface import PROGRESS_INTERVAL_S


class LoadProgress:
    """Writes reports to standard output (`Report` in the crate `settings`).

    Calls are made by one thread at a time, each with the part of the weights that is loaded, from 0 to 1.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._told_at = clock, clock()

    def __call__(self, done: float) -> None:
        if (now := self._clock()) - self._told_at < PROGRESS_INTERVAL_S:
            return
        self._told_at = now
        print(json.dumps({"loading": {"percent": int(100 * done)}}), flush=True)  # noqa: T201
