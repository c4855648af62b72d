"""A stream whose pauses are measured while a test does something else."""

from __future__ import annotations

import itertools
import threading
import time
from types import TracebackType
from typing import Any

from harness import Trunkline, http, sse_events, wait_for

TIMEOUT_S = 240.0


class WatchedStream:
    """A greedy completion, read by its own thread, which records when each event arrives.

    Leaving the block closes the connection, so a stream may ask for more tokens than the test needs.
    """

    def __init__(self, server: Trunkline, max_tokens: int = 4000, headers: dict[str, str] | None = None) -> None:
        self.times: list[float] = []
        self.ended = threading.Event()
        self._is_closed = threading.Event()
        body = {"prompt": "The sea is", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        self._request: dict[str, Any] = {"url": f"{server.base_url}/v1/completions", "json": body, "headers": headers}
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        with http.stream("POST", timeout=TIMEOUT_S, **self._request) as answer:
            for event in sse_events(answer.iter_lines()):
                if self._is_closed.is_set():
                    return
                if isinstance(event, dict) and "error" not in event:
                    self.times.append(time.monotonic())
        self.ended.set()

    def __enter__(self) -> WatchedStream:
        self._thread.start()
        wait_for(lambda: len(self.times) > 3, "the stream to begin", TIMEOUT_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_closed.set()
        self._thread.join(TIMEOUT_S)

    def longest_pause(self, begin: float, end: float) -> float:
        """Returns the longest time without an event between two moments, in seconds. Fails if the stream has ended."""
        assert not self.ended.is_set(), "the stream ended before the measurement"
        moments = [begin, *(moment for moment in self.times if begin < moment < end), end]
        return max(after - before for before, after in itertools.pairwise(moments))
