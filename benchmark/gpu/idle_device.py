"""A device that captures steps and replays nothing: what the host does for a step runs without a GPU."""

from __future__ import annotations

from collections.abc import Callable

from trunkline_server.backends.cuda.device import Graph, HostDevice


class _IdleGraph:
    def replay(self) -> None:
        pass


class IdleDevice(HostDevice):
    """Captures by doing the work once; copies of steps and results are those of the CPU's memory."""

    can_capture = True

    def capture(self, work: Callable[[], object]) -> Graph:
        work()
        return _IdleGraph()
