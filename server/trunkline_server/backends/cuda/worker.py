"""A thread that does one thing after the other, beside the engine loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol


class Worker(Protocol):
    """Tasks are done in the order of their posting."""

    def post(self, task: Callable[[], None]) -> None:
        """Has a task done. From any thread; never waits."""
        ...

    def drain(self) -> None:
        """Returns when all that was posted is done."""
        ...


class ThreadWorker:
    """Implements `Worker` by a thread that lives as long as the process.

    on_bug: called from there with what a task raised, which it never should.
    """

    def __init__(self, name: str, on_bug: Callable[[BaseException], None]) -> None:
        self._on_bug = on_bug
        self._tasks: queue.Queue[Callable[[], None]] = queue.Queue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def post(self, task: Callable[[], None]) -> None:
        self._tasks.put(task)

    def drain(self) -> None:
        self._tasks.join()

    def _run(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task()
            except BaseException as bug:  # noqa: BLE001  whoever takes outcomes raises it
                self._on_bug(bug)
            finally:
                self._tasks.task_done()
                # Not kept until the next one comes: it holds memory of a step.
                del task
