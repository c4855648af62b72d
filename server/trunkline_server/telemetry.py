"""Tells an OpenTelemetry collector what only the shard knows: its start, transfers, slow steps and its process.

Nothing of OpenTelemetry is imported unless a collector is named, and only after the shard computes. The engine loop
notes events, and a thread makes spans of them (`otlp.py`). docs/operations.md#traces lists them.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import threading
import time
from collections import deque
from importlib.util import find_spec
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from trunkline_server import start_times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trunkline_server._proto.shard_pb2 import Chunk, Restore, Transfers
    from trunkline_server.engine import StepTimes
    from trunkline_server.otlp import Exporter
    from trunkline_server.settings import Settings

logger = logging.getLogger(__name__)

# Events between two looks of the thread. If more occur, the oldest are lost.
MAX_EVENTS = 256
# The import takes half a second of one core, which the first request needs more.
IMPORT_DELAY_S = 1.0
INTERVAL_S = 1.0
STOP_LIMIT_S = 3.0
# A step is slow if it takes so many times as long as those before it that had as much to do.
SLOW_FACTOR = 3
# Steps of a kind before one of them can be slow, and the part by which each changes what is expected of the next.
MIN_STEPS = 8
WEIGHT = 1 / 8
_NS_PER_US = 1000

# For loops over the chunks of every step, which these make four times as fast.
_stores_of, _tokens_of, _position_of = attrgetter("stores"), attrgetter("num_tokens"), attrgetter("first_position")


class Event(NamedTuple):
    """A span to be. parts: names, begins and ends of those inside it."""

    name: str
    began_ns: int
    ended_ns: int
    attributes: Mapping[str, int | str]
    parts: tuple[tuple[str, int, int], ...] = ()


def begin(settings: Settings, lane: int, began_ns: int | None) -> Telemetry | None:
    """Returns what collects events if a collector is named and the packages are there.

    began_ns: when the start began, in nanoseconds since 1970; None if it was with the process.
    """
    endpoint = settings.server.otlp_endpoint or os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    if not endpoint or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        is_installed = all(find_spec(f"opentelemetry.{name}") for name in ("sdk", "exporter.otlp"))
    except ModuleNotFoundError:
        is_installed = False
    if not is_installed:
        logger.info("no spans of the shard: opentelemetry-sdk is not installed; hint: install the extra `otel`")
        return None
    return Telemetry(endpoint, lane, process_began_ns() if began_ns is None else began_ns)


def process_began_ns() -> int:
    """Returns when this process began, in nanoseconds since 1970, to a hundredth of a second."""
    with open("/proc/self/stat", "rb") as file:  # noqa: PTH123
        # The name in parentheses may contain spaces.
        ticks = int(file.read().rpartition(b")")[2].split()[19])
    booted_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return booted_ns + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class Telemetry:
    """Implements `Observer` of the engine, whose turns order its calls, and owns the thread that exports."""

    def __init__(self, endpoint: str, lane: int, began_ns: int) -> None:
        self._endpoint, self._lane, self._began_ns = endpoint, lane, began_ns
        self._ready_ns = 0
        self._first_step: tuple[int, int] | None = None
        self._events: deque[Event] = deque(maxlen=MAX_EVENTS)
        # From the clock of steps to nanoseconds since 1970.
        self._offset_ns = time.time_ns() - time.perf_counter_ns()
        # When transfers began: of stores by slot, of restores by id, with the number of blocks and the store.
        self._stores: dict[int, int] = {}
        self._restores: dict[int, tuple[int, str]] = {}
        # The expected microseconds of steps of each kind, and the number of such steps.
        self._expected: dict[tuple[int, int, int], tuple[float, int]] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def ready(self) -> None:
        """Begins to export, since the start has ended."""
        self._ready_ns = start_times.now()
        self._thread.start()

    def stop(self) -> None:
        """Exports what is left, for `STOP_LIMIT_S` at most."""
        self._stopped.set()
        self._thread.join(STOP_LIMIT_S)

    def begun(self, restores: Sequence[Restore], chunks: Sequence[Chunk]) -> None:
        for restore in restores:
            self._restores[restore.restore_id] = len(restore.blocks), "other" if restore.store_folder else "own"
        for stores in filter(None, map(_stores_of, chunks)):
            self._stores.update(dict.fromkeys((store.slot for store in stores), time.time_ns()))

    def finished(self, step: StepTimes) -> None:
        num_tokens, num_computed = sum(map(_tokens_of, step.chunks)), sum(map(_position_of, step.chunks))
        elapsed_us = (step.finished_ns - step.free_ns) // _NS_PER_US
        if self._first_step is None and step.chunks:
            self._first_step = (step.free_ns + self._offset_ns, step.finished_ns + self._offset_ns)
        kind = (len(step.chunks).bit_length(), num_tokens.bit_length(), num_computed.bit_length())
        expected_us, count = self._expected.get(kind, (elapsed_us, 0))
        is_slow = count >= MIN_STEPS and elapsed_us > SLOW_FACTOR * expected_us
        # One slow step must not make the next ones seem quick.
        counted_us = min(elapsed_us, SLOW_FACTOR * expected_us) if count >= MIN_STEPS else elapsed_us
        self._expected[kind] = (expected_us + (counted_us - expected_us) * max(WEIGHT, 1 / (count + 1)), count + 1)
        if is_slow:
            self._events.append(self._slow_step(step, num_tokens, int(expected_us)))

    def _slow_step(self, step: StepTimes, num_tokens: int, expected_us: int) -> Event:
        began_ns, ended_ns = step.free_ns + self._offset_ns, step.finished_ns + self._offset_ns
        prepared_ns = max(began_ns, step.prepared_ns + self._offset_ns)
        waited_ns = max(0, ended_ns - began_ns - step.device_time_us * _NS_PER_US)
        drafted_ns = prepared_ns + step.draft_time_us * _NS_PER_US
        # The device's own order is not known; masks are waited for before tokens are sampled, at the end.
        parts = (
            ("prepare", began_ns, prepared_ns),
            ("draft", prepared_ns, drafted_ns),
            ("compute", drafted_ns, max(drafted_ns, ended_ns - waited_ns)),
            ("wait for masks", ended_ns - waited_ns, ended_ns),
        )
        attributes = {
            "trunkline.lane": self._lane,
            "trunkline.step_id": step.step_id,
            "trunkline.step.tokens": num_tokens,
            "trunkline.step.sequences": len(step.chunks),
            "trunkline.step.expected_us": expected_us,
        }
        # Times of the device are whole microseconds.
        seen = tuple(part for part in parts if part[2] - part[1] >= _NS_PER_US)
        return Event("slow step", began_ns, ended_ns, attributes, seen)

    def transferred(self, transfers: Transfers) -> None:
        now_ns = time.time_ns()
        if transfers.stores:
            began_ns = min(self._stores.pop(outcome.slot, now_ns) for outcome in transfers.stores)
            failed = sum(not outcome.is_stored for outcome in transfers.stores)
            blocks = {"trunkline.blocks": len(transfers.stores), "trunkline.blocks.failed": failed}
            self._events.append(Event("store", began_ns, now_ns, {"trunkline.lane": self._lane, **blocks}))
        for outcome in transfers.restores:
            num_blocks, store = self._restores.pop(outcome.restore_id, (outcome.num_blocks, "own"))
            failed = num_blocks - outcome.num_blocks
            blocks = {"trunkline.blocks": num_blocks, "trunkline.blocks.failed": failed, "trunkline.store": store}
            began_ns = now_ns - outcome.time_us * _NS_PER_US
            self._events.append(Event("restore", began_ns, now_ns, {"trunkline.lane": self._lane, **blocks}))

    def forgotten(self) -> None:
        """Forgets transfers of a stream that has ended."""
        self._stores.clear()
        self._restores.clear()

    def _run(self) -> None:
        self._stopped.wait(IMPORT_DELAY_S)
        try:
            exporter: Exporter = importlib.import_module("trunkline_server.otlp").Exporter(self._endpoint, self._lane)
        except (ImportError, ValueError, OSError) as error:
            logger.warning("no spans of the shard: %s", error)
            return
        # The packages live as long as the process; see `serve`.
        gc.freeze()
        parts = start_times.parts()
        imported = ("import", self._began_ns, min(began_ns for _, began_ns, _ in parts))
        process = exporter.start("start shard", self._began_ns, self._ready_ns, [imported, *parts])
        is_first_told = False
        while True:
            is_last = self._stopped.wait(INTERVAL_S)
            if self._first_step is not None and not is_first_told:
                exporter.span("first step", *self._first_step, {}, process)
                is_first_told = True
            while self._events:
                event = self._events.popleft()
                whole = exporter.span(event.name, event.began_ns, event.ended_ns, event.attributes)
                for part in event.parts:
                    exporter.span(*part, {}, whole)
            if is_last:
                exporter.stop()
                return
