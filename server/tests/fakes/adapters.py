"""A loader of adapters that reads no files."""

from __future__ import annotations

from trunkline_server._proto.shard_pb2 import AdapterLoad, AdapterOutcome, OpenAdapterResponse
from trunkline_server.errors import ModelNotFound

HASH = bytes(range(32))
# Of an adapter in a slot.
ADAPTER_BYTES = 64


class FakeLoader:
    """Knows the adapter `/adapters/known`, and has loaded it at the next look. Others do not exist."""

    def __init__(self) -> None:
        self._outcomes: list[AdapterOutcome] = []

    def open(self, source: str) -> OpenAdapterResponse:
        if problem := self._problem(source):
            raise ModelNotFound(problem)
        return OpenAdapterResponse(path=source, content_hash=HASH, num_bytes=ADAPTER_BYTES, rank=4)

    def begin(self, load: AdapterLoad) -> None:
        if load.path:
            self._outcomes.append(AdapterOutcome(slot=load.slot, problem=self._problem(load.path)))

    def take_outcomes(self) -> list[AdapterOutcome]:
        outcomes, self._outcomes = self._outcomes, []
        return outcomes

    def reset(self) -> None:
        self._outcomes.clear()

    @staticmethod
    def _problem(path: str) -> str:
        return "" if path == "/adapters/known" else f"adapter `{path}` does not exist"
