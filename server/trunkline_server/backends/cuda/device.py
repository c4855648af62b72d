"""The device functions that the backend needs besides kernels: pinned memory, copies, events, graphs.

`CudaDevice` wraps torch.cuda. `HostDevice` is the CPU with Triton's interpreter, on which every call completes before
it returns. Tests of the bookkeeping have a device of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in the device's work."""

    def is_reached(self) -> bool:
        """Returns True if all work before this point is done. Never waits."""

    def wait(self) -> None:
        """Waits until all work before this point is done."""


class Graph(Protocol):
    def replay(self) -> None:
        """Repeats the captured work on the memory it was captured with. Does not wait."""


class Stream(Protocol):
    """Work beside the steps, done in order. May be called from any thread, but only by one at a time."""

    def run(self, work: Callable[[], object]) -> None:
        """Begins the launches and copies of `work`, which may be called at once. Does not wait."""

    def wait_for(self, event: Event) -> None:
        """Orders later work of this stream after the event. Does not wait itself."""

    def mark(self) -> Event:
        """Returns the point after all work so far."""


class Device(Protocol):
    """A device. The work of steps runs in order, on one stream."""

    torch_device: torch.device
    can_capture: bool

    def pinned(self, num_words: int) -> torch.Tensor:
        """Returns zeroed, pinned host memory, [num_words] i32, which the device can copy from and to."""

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copies between pinned and device memory, in order with the device's work. Does not wait."""

    def mark(self) -> Event:
        """Returns the point after all work so far."""

    def stream(self) -> Stream:
        """Makes another stream. Its kernels have priority over those of steps."""

    def wait_for(self, event: Event) -> None:
        """Orders later steps after the event. Does not wait itself."""

    def pinned_bytes(self, num_bytes: int) -> torch.Tensor:
        """Returns uninitialised, pinned host memory, [num_bytes] u8. Raises RuntimeError if the system refuses."""

    def send(self, numbers: list[int]) -> torch.Tensor:
        """Copies numbers to the device as [n] i32, in order with the current stream's work. Does not wait."""

    def capture(self, work: Callable[[], object]) -> Graph:
        """Captures the launches of `work`. Run `work` once before, so that nothing is compiled during the capture."""

    def wait(self) -> None:
        """Waits until all work is done."""

    def free_bytes(self) -> tuple[int, int]:
        """Returns the free and the total bytes of the device's memory."""

    def describe(self) -> str:
        """Describes the device for log and user."""


class _Done:
    def is_reached(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class _HostStream:
    def run(self, work: Callable[[], object]) -> None:
        work()

    def wait_for(self, event: Event) -> None:
        pass

    def mark(self) -> Event:
        return _Done()


class HostDevice:
    """The CPU, with kernels in Triton's interpreter. free: the result of `free_bytes`."""

    can_capture = False

    def __init__(self, free: int = 1 << 30) -> None:
        self.torch_device = torch.device("cpu")
        self._free = free

    def pinned(self, num_words: int) -> torch.Tensor:
        return torch.zeros(num_words, dtype=torch.int32)

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        destination.copy_(source)

    def mark(self) -> Event:
        return _Done()

    def stream(self) -> Stream:
        return _HostStream()

    def wait_for(self, event: Event) -> None:
        pass

    def pinned_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def send(self, numbers: list[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32)

    def capture(self, work: Callable[[], object]) -> Graph:
        raise NotImplementedError("the CPU cannot capture graphs")

    def wait(self) -> None:
        pass

    def free_bytes(self) -> tuple[int, int]:
        return self._free, self._free

    def describe(self) -> str:
        return "the CPU, kernels in Triton's interpreter"


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        # A blocking event lets the waiting thread sleep instead of spin.
        self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def is_reached(self) -> bool:
        reached: bool = self.event.query()  # type: ignore[no-untyped-call]
        return reached

    def wait(self) -> None:
        self.event.synchronize()


class _CudaStream:
    # A lower number has priority; steps have 0.
    _PRIORITY = -1

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=self._PRIORITY)  # type: ignore[no-untyped-call]

    def run(self, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self._stream):
            work()

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent), "an event of this device"
        self._stream.wait_event(event.event)

    def mark(self) -> Event:
        return _CudaEvent(self._stream)


class CudaDevice:
    """An NVIDIA GPU. Steps run on a stream of its own, which `use` makes current.

    Graphs share one memory pool, because they are never replayed at the same time.
    """

    can_capture = True

    def __init__(self, index: int = 0) -> None:
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def use(self) -> None:
        """Makes the stream of steps the current one of the calling thread."""
        torch.cuda.set_device(self.torch_device)
        torch.cuda.set_stream(self._stream)

    def pinned(self, num_words: int) -> torch.Tensor:
        return torch.zeros(num_words, dtype=torch.int32, pin_memory=True)

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        destination.copy_(source, non_blocking=True)

    def mark(self) -> Event:
        return _CudaEvent(self._stream)

    def stream(self) -> Stream:
        return _CudaStream(self.torch_device)

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent), "an event of this device"
        self._stream.wait_event(event.event)

    def pinned_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def send(self, numbers: list[int]) -> torch.Tensor:
        # torch's pinned allocator does not reuse the memory before the copy is done.
        pinned = torch.tensor(numbers, dtype=torch.int32, pin_memory=True)
        return pinned.to(self.torch_device, non_blocking=True)

    def capture(self, work: Callable[[], object]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        if self._pool is None:
            self._pool = graph.pool()
        return graph

    def wait(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def free_bytes(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return free, total

    def describe(self) -> str:
        properties = torch.cuda.get_device_properties(self.torch_device)
        return f"{properties.name}, {properties.total_memory >> 20} MiB, {properties.multi_processor_count} SMs"
