"""The little that the backend asks of a device besides kernels: pinned memory, copies, events, graphs.

`CudaDevice` is torch.cuda and nothing more. `HostDevice` is the CPU on which Triton's interpreter runs: everything is
done when the call returns. Tests of bookkeeping have one of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch


class Event(Protocol):
    """A point in the device's work."""

    def is_reached(self) -> bool:
        """Whether all work before it is done. Never waits."""
        ...

    def wait(self) -> None:
        """Returns when it is reached."""
        ...


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Does it again, on the memory it was captured with. Does not wait."""
        ...


class Stream(Protocol):
    """Work beside the steps, in order. Called by any thread, by one at a time."""

    def run(self, work: Callable[[], object]) -> None:
        """Begins what `work` launches and copies; may call it now. Does not wait."""
        ...

    def wait_for(self, event: Event) -> None:
        """What is begun from now on comes after the event. Does not wait itself."""
        ...

    def mark(self) -> Event:
        """The point after all work so far."""
        ...


class Device(Protocol):
    """The work of steps goes in order, on one stream."""

    torch_device: torch.device
    can_capture: bool

    def pinned(self, num_words: int) -> torch.Tensor:
        """Zeroed memory of the host that the device copies from and to by itself, [num_words] i32."""
        ...

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        """Copies between pinned and device memory, in order with the device's work. Does not wait."""
        ...

    def mark(self) -> Event:
        """The point after all work so far."""
        ...

    def stream(self) -> Stream:
        """Another stream. Its kernels go before those of steps where both wait for room."""
        ...

    def wait_for(self, event: Event) -> None:
        """Steps that are begun from now on come after the event. Does not wait itself."""
        ...

    def pinned_bytes(self, num_bytes: int) -> torch.Tensor:
        """As `pinned`, [num_bytes] u8 that hold anything. Raises RuntimeError if the system refuses."""
        ...

    def send(self, numbers: list[int]) -> torch.Tensor:
        """[n] i32 on the device, in order with the stream's work that it is called from. Does not wait."""
        ...

    def capture(self, work: Callable[[], object]) -> Graph:
        """Captures the launches of `work`, which was run before, so that nothing is compiled now."""
        ...

    def wait(self) -> None:
        """Returns when all work is done."""
        ...

    def free_bytes(self) -> tuple[int, int]:
        """Of the device's memory: what is free, and all."""
        ...

    def describe(self) -> str:
        """For people."""
        ...


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
    """The CPU, with kernels in Triton's interpreter. free: what `free_bytes` says."""

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
        raise NotImplementedError("nothing is captured on the CPU")

    def wait(self) -> None:
        pass

    def free_bytes(self) -> tuple[int, int]:
        return self._free, self._free

    def describe(self) -> str:
        return "the CPU, kernels in Triton's interpreter"


class _CudaEvent:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        # Who waits for it sleeps.
        self.event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def is_reached(self) -> bool:
        reached: bool = self.event.query()  # type: ignore[no-untyped-call]
        return reached

    def wait(self) -> None:
        self.event.synchronize()


class _CudaStream:
    # Lower is earlier; steps have 0.
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
    """An NVIDIA GPU. Steps go to a stream of its own, which is made current by whoever calls `use`.

    Graphs share one memory pool: they are never replayed at the same time.
    """

    can_capture = True

    def __init__(self, index: int = 0) -> None:
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self._stream = torch.cuda.Stream(self.torch_device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def use(self) -> None:
        """Makes the stream that of the calling thread."""
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
        # The allocator of pinned memory gives it to nobody else before the copy is done.
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
