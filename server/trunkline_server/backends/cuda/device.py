"""The device functions that the backend needs besides kernels: pinned memory, copies, events, graphs.

`Device`, `Stream` and `Event` are the CPU with Triton's interpreter, on which every call completes before it returns.
The classes of a GPU override them, and so do those of tests.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Event:
    """A point in the device's work."""

    def __init__(self) -> None:
        self._at_ns = time.perf_counter_ns()

    def is_reached(self) -> bool:
        """Returns True if all work before this point is done. Never waits."""
        return True

    def wait(self) -> None:
        """Waits until all work before this point is done."""

    def us_since(self, earlier: Event) -> int:
        """Returns the device's time from an earlier point to this one, in microseconds. Both were marked with `timed`
        and are reached.
        """
        return (self._at_ns - earlier._at_ns) // 1000


class Graph(Protocol):
    def replay(self) -> None:
        """Repeats the captured work on the memory it was captured with. Does not wait."""


class Stream:
    """Work beside the steps, done in order. May be called from any thread, but only by one at a time."""

    def run(self, work: Callable[[], object]) -> None:
        """Begins the launches and copies of `work`, which may be called at once. Does not wait."""
        work()

    def wait_for(self, event: Event) -> None:
        """Orders later work of this stream after the event. Does not wait itself."""

    def mark(self, *, timed: bool = False) -> Event:
        """Returns the point after all work so far. timed: the device notes when it gets there."""
        return Event()


class Device:
    """A device. The work of steps runs in order, on the stream `steps`."""

    can_capture = False

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.steps = Stream()

    def use(self) -> None:
        """Makes the stream of steps the current one of the calling thread. Each thread that uses the device begins
        with it.
        """

    def pinned(self, num_words: int) -> torch.Tensor:
        """Returns zeroed, pinned host memory, [num_words] i32."""
        return self.pinned_bytes(4 * num_words).view(torch.int32).zero_()

    def pinned_bytes(self, num_bytes: int) -> torch.Tensor:
        """Returns uninitialised, pinned host memory, [num_bytes] u8. Raises RuntimeError if the system refuses."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copies between pinned and device memory, in order with the current stream's work. Does not wait."""
        destination.copy_(source, non_blocking=True)

    def send(self, numbers: Sequence[int] | NDArray[np.int32]) -> torch.Tensor:
        """Copies numbers to the device as [n] i32, in order with the current stream's work. Does not wait."""
        return torch.as_tensor(numbers, dtype=torch.int32).to(self.torch_device)

    def stream(self) -> Stream:
        """Makes another stream. Its kernels have priority over those of steps."""
        return Stream()

    def capture(self, work: Callable[[], object]) -> Graph:
        """Captures the launches of `work`. Run `work` once before, so that nothing is compiled during the capture."""
        raise NotImplementedError("the CPU cannot capture graphs")

    def wait(self) -> None:
        """Waits until all work is done."""

    def free_bytes(self) -> tuple[int, int]:
        """Returns the free and the total bytes of the device's memory."""
        return 1 << 30, 1 << 30

    def describe(self) -> str:
        """Describes the device for log and user."""
        return "the CPU, kernels in Triton's interpreter"

    def kernel_traits(self) -> str:
        """Returns the properties of the device by which kernels and library products are chosen, so that equal ones
        give equal bits.
        """
        return "interpreter"


class _CudaEvent(Event):
    def __init__(self, stream: torch.cuda.Stream, *, timed: bool) -> None:
        # A blocking event lets the waiting thread sleep instead of spin.
        self.event = torch.cuda.Event(enable_timing=timed, blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def is_reached(self) -> bool:
        reached: bool = self.event.query()  # type: ignore[no-untyped-call]
        return reached

    def wait(self) -> None:
        self.event.synchronize()

    def us_since(self, earlier: Event) -> int:
        assert isinstance(earlier, _CudaEvent), "an event of this device"
        elapsed_ms: float = earlier.event.elapsed_time(self.event)
        return round(elapsed_ms * 1000)


class _CudaStream(Stream):
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.stream = stream

    def run(self, work: Callable[[], object]) -> None:
        with torch.cuda.stream(self.stream):
            work()

    def wait_for(self, event: Event) -> None:
        assert isinstance(event, _CudaEvent), "an event of this device"
        self.stream.wait_event(event.event)

    def mark(self, *, timed: bool = False) -> Event:
        return _CudaEvent(self.stream, timed=timed)


class CudaDevice(Device):
    """An NVIDIA GPU. Graphs share one memory pool, because they are never replayed at the same time."""

    can_capture = True

    def __init__(self) -> None:
        self.torch_device = torch.device("cuda", 0)
        torch.cuda.set_device(self.torch_device)
        self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self.steps = _CudaStream(self._stream)
        self._pool: Any = None

    def use(self) -> None:
        torch.cuda.set_device(self.torch_device)
        torch.cuda.set_stream(self._stream)

    def pinned_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)

    def send(self, numbers: Sequence[int] | NDArray[np.int32]) -> torch.Tensor:
        # torch's pinned allocator does not reuse the memory before the copy is done.
        pinned = torch.as_tensor(numbers, dtype=torch.int32).pin_memory()
        return pinned.to(self.torch_device, non_blocking=True)

    def stream(self) -> Stream:
        # A lower number has priority; steps have 0.
        return _CudaStream(torch.cuda.Stream(self.torch_device, priority=-1))  # type: ignore[no-untyped-call]

    def capture(self, work: Callable[[], object]) -> Graph:
        graph = torch.cuda.CUDAGraph()
        collects = gc.isenabled()
        # Freeing a tensor or a graph of before would break the capture.
        gc.disable()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
                work()
        finally:
            if collects:
                gc.enable()
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

    def kernel_traits(self) -> str:
        # Not the size of the memory, which driver and firmware change by some MiB between equal cards. It decides only
        # how many blocks there are.
        properties = torch.cuda.get_device_properties(self.torch_device)
        major, minor = torch.cuda.get_device_capability(self.torch_device)
        return f"{properties.name}, {major}.{minor}, {properties.multi_processor_count}"
