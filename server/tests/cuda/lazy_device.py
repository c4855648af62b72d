"""A device whose streams delay work until something waits for it or a random choice runs it.

Work that is not ordered by events is done in a wrong order, which shows as wrong bytes.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from trunkline_server.backends.cuda.device import Device, Event, Stream
from trunkline_server.backends.cuda.worker import Worker


@dataclass(eq=False)
class LazyEvent(Event):
    """An event that is reached when the stream has done all work from before its mark."""

    device: LazyDevice
    stream: LazyStream
    count: int

    def is_reached(self) -> bool:
        self.device.make_progress()
        return self.stream.num_done >= self.count

    def wait(self) -> None:
        with self.device.lock:
            while self.stream.num_done < self.count:
                self.stream.do_one()

    def us_since(self, earlier: Event) -> int:
        assert isinstance(earlier, LazyEvent) and self.stream.num_done >= self.count, "both are reached"
        return self.count - earlier.count


class LazyStream(Stream):
    def __init__(self, device: LazyDevice) -> None:
        self._device = device
        self._todo: deque[Callable[[], object]] = deque()
        self.num_begun = self.num_done = 0

    def run(self, work: Callable[[], object]) -> None:
        with self._device.lock:
            self._todo.append(work)
            self.num_begun += 1

    def wait_for(self, event: Event) -> None:
        # Waiting for an event makes the stream do the work before it.
        self.run(event.wait)

    def mark(self, *, timed: bool = False) -> Event:
        with self._device.lock:
            return LazyEvent(self._device, self, self.num_begun)

    def do_one(self) -> None:
        """Does the oldest piece of pending work."""
        work = self._todo.popleft()
        work()
        self.num_done += 1

    @property
    def is_idle(self) -> bool:
        return not self._todo


class LazySteps(LazyStream):
    """The stream of steps. is_lazy: see `LazyDevice`; num_waits: calls of `wait_for`."""

    def __init__(self, device: LazyDevice, *, is_lazy: bool) -> None:
        super().__init__(device)
        self._is_lazy = is_lazy
        self.num_waits = 0

    def wait_for(self, event: Event) -> None:
        self.num_waits += 1
        if self._is_lazy:
            super().wait_for(event)
        else:
            event.wait()


class LazyDevice(Device):
    """A host device with lazy streams.

    seed: of the random choices of pending work; None does nothing until something waits. is_main_lazy: steps are
    delayed too, and tests pass their work to `steps.run`; otherwise they run at once, as in the interpreter.
    """

    def __init__(self, seed: int | None, *, is_main_lazy: bool = False) -> None:
        super().__init__()
        # Kernels run there. Even on a GPU, this class decides the order.
        self.torch_device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.lock = threading.RLock()
        self._chance = None if seed is None else random.Random(seed)
        self.steps: LazySteps = LazySteps(self, is_lazy=is_main_lazy)
        self.streams: list[LazyStream] = [self.steps]

    def stream(self) -> Stream:
        self.streams.append(LazyStream(self))
        return self.streams[-1]

    def wait(self) -> None:
        with self.lock:
            for stream in self.streams:
                stream.mark().wait()

    def make_progress(self) -> None:
        """Does some of the pending work, at random."""
        with self.lock:
            busy = [stream for stream in self.streams if not stream.is_idle]
            if self._chance is None or not busy:
                return
            for _ in range(self._chance.randrange(4)):
                stream = self._chance.choice(busy)
                if not stream.is_idle:
                    stream.do_one()


class InlineWorker(Worker):
    """A worker whose tasks run when the test says so, or on `drain`."""

    def __init__(self, name: str, on_bug: Callable[[BaseException], None]) -> None:
        self.name = name
        # Set while a task runs, because a task may make other workers run theirs.
        self.is_busy = False
        self._posted: deque[Callable[[], None]] = deque()

    def post(self, task: Callable[[], None]) -> None:
        self._posted.append(task)

    def drain(self) -> None:
        while self.do_one():
            pass

    def do_one(self) -> bool:
        """Runs the oldest task; returns False if there is none."""
        if not self._posted:
            return False
        assert not self.is_busy, "tasks are done one after the other"
        self.is_busy = True
        self._posted.popleft()()
        self.is_busy = False
        return True
