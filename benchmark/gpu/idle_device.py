"""A device that captures steps but replays nothing, so that the host's work for a step runs without a GPU."""

from __future__ import annotations

from collections.abc import Callable

from trunkline_server.backends.cuda.device import Graph, HostDevice


class _IdleGraph:
    def replay(self) -> None:
        pass


class IdleDevice(HostDevice):
    """Captures a step by running it once. Inputs and results are copied within host memory."""

    can_capture = True

    def capture(self, work: Callable[[], object]) -> Graph:
        work()
        return _IdleGraph()
