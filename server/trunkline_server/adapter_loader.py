"""Opens adapters for the router and loads them into a backend's slots, on a thread of its own beside the steps."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from trunkline_server import hub
from trunkline_server._proto.shard_pb2 import AdapterLoad, AdapterOutcome, OpenAdapterResponse
from trunkline_server.adapters.adapter import Adapter, changed, content_hash, load
from trunkline_server.adapters.open import open_adapter
from trunkline_server.backends.interface import short_message
from trunkline_server.errors import InvalidArgument, UserError
from trunkline_server.weights.identity import is_settled

if TYPE_CHECKING:
    from trunkline_server.adapters.base import BaseModel
    from trunkline_server.backends.interface import AdapterSlots, PackedAdapter

logger = logging.getLogger(__name__)

# Opened adapters that are kept. Each takes a quarter of a megabyte.
_MAX_OPENED = 64


class _Loaded(NamedTuple):
    """The outcome of a load. stream: the number of resets before it began. packed: None if there is a problem."""

    stream: int
    slot: int
    packed: PackedAdapter | None
    problem: str


class AdapterLimits(NamedTuple):
    """The largest rank of an adapter, and the bytes that loaded ones may take together."""

    rank: int
    num_bytes: int


class AdapterLoader:
    """Implements `Adapters`: opens on the caller's thread, and loads on its own. wake: called after each load."""

    def __init__(self, slots: AdapterSlots, base: BaseModel, limits: AdapterLimits, wake: Callable[[], None]) -> None:
        self._slots = slots
        self._base = base
        self._limits = limits
        self._wake = wake
        self._stream = 0
        # The adapters that were opened last, with their hashes, by path. The oldest is first.
        self._opened: dict[str, tuple[Adapter, str]] = {}
        self._lock = threading.Lock()
        self._loads = queue.SimpleQueue[tuple[int, AdapterLoad]]()
        self._loaded = queue.SimpleQueue[_Loaded]()
        threading.Thread(target=self._run, name="adapters", daemon=True).start()

    def open(self, source: str) -> OpenAdapterResponse:
        path, now_ns = str(hub.resolve_adapter(source)), time.time_ns()
        adapter = open_adapter(Path(path), self._base.config, self._limits.rank)
        num_bytes, most = self._slots.num_bytes(adapter), self._limits.num_bytes
        if num_bytes > most:
            what = f"adapter `{path}` takes {num_bytes} bytes, but loaded adapters may take only {most} bytes together"
            raise InvalidArgument(what, hint="raise `--max-loras`")
        known_hash = content_hash(adapter)
        self._keep(path, adapter, known_hash, now_ns)
        return OpenAdapterResponse(
            path=path,
            content_hash=bytes.fromhex(known_hash),
            num_bytes=num_bytes,
            rank=adapter.rank,
        )

    def begin(self, load: AdapterLoad) -> None:
        self._slots.put(load.slot, None)
        if load.path:
            self._loads.put((self._stream, load))

    def take_outcomes(self) -> list[AdapterOutcome]:
        outcomes = []
        while not self._loaded.empty():
            stream, slot, packed, problem = self._loaded.get()
            if stream != self._stream:
                continue
            if packed is not None:
                self._slots.put(slot, packed)
            outcomes.append(AdapterOutcome(slot=slot, problem=problem))
        return outcomes

    def reset(self) -> None:
        self._stream += 1

    def _run(self) -> None:
        while True:
            stream, load = self._loads.get()
            packed, problem = None, ""
            try:
                packed = self._load(load)
            except UserError as error:
                problem = str(error)
            # The adapter's own sequences fail, and nothing else.
            except Exception as error:
                logger.exception("cannot load adapter %s", load.path)
                problem = f"cannot load adapter `{load.path}`: {error}"
            self._loaded.put(_Loaded(stream, load.slot, packed, short_message(problem)))
            self._wake()

    def _load(self, wanted: AdapterLoad) -> PackedAdapter:
        wanted_hash = wanted.content_hash.hex()
        adapter, known_hash = self._opened.get(wanted.path) or (None, None)
        if adapter is None or known_hash != wanted_hash:
            adapter = open_adapter(Path(wanted.path), self._base.config, self._limits.rank)
            if content_hash(adapter) != wanted_hash:
                raise changed(adapter)
        # Notices if the file has changed since it was hashed.
        return self._slots.pack(load(adapter, self._base.open))

    def _keep(self, path: str, adapter: Adapter, known_hash: str, now_ns: int) -> None:
        """Keeps what is known of an adapter, unless its file is so new that another change would not be noticed."""
        with self._lock:
            self._opened.pop(path, None)
            if is_settled(adapter.status, now_ns):
                self._opened[path] = adapter, known_hash
            while len(self._opened) > _MAX_OPENED:
                del self._opened[next(iter(self._opened))]
