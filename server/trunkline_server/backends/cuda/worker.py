"""A thread that runs tasks one after the other, beside the engine loop."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Worker:
    """Runs tasks in the order in which they were posted, in a thread that lives as long as the process.

    on_bug: called from that thread with an exception that a task raised, which tasks should never do.
    """

    def __init__(self, name: str, on_bug: Callable[[BaseException], None]) -> None:
        self._on_bug = on_bug
        self._tasks: queue.Queue[Callable[[], None]] = queue.Queue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def post(self, task: Callable[[], None]) -> None:
        """Queues a task without waiting. May be called from any thread."""
        self._tasks.put(task)

    def drain(self) -> None:
        """Waits until all posted tasks are done."""
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
                # Dropped before the next wait, because it holds memory of a step.
                del task
