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


class Device(Protocol):
    """All work goes in order, on one stream."""

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

    def capture(self, work: Callable[[], object]) -> Graph:
        raise NotImplementedError("nothing is captured on the CPU")

    def wait(self) -> None:
        pass

    def free_bytes(self) -> tuple[int, int]:
        return self._free, self._free

    def describe(self) -> str:
        return "the CPU, kernels in Triton's interpreter"


class _CudaEvent:
    def __init__(self, event: torch.cuda.Event) -> None:
        self._event = event

    def is_reached(self) -> bool:
        reached: bool = self._event.query()  # type: ignore[no-untyped-call]
        return reached

    def wait(self) -> None:
        self._event.synchronize()


class CudaDevice:
    """An NVIDIA GPU. All work goes to a stream of its own, which is made current by whoever calls `use`.

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
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return _CudaEvent(event)

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
