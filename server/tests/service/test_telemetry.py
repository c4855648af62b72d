"""An OTLP receiver of the official protobufs reads back what a shard tells a collector."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tests.fakes.shard import DEADLINE_S, Client
from tests.service.test_process import SERVER, Start, start
from tests.service.test_step import decode_plan, first_plan
from trunkline_server import telemetry
from trunkline_server._proto import shard_pb2 as pb
from trunkline_server.engine import StepTimes
from trunkline_server.settings import Settings
from trunkline_server.telemetry import MIN_STEPS, Event, Telemetry

__all__ = ["start"]
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc", reason="the extra `otel` is not installed")
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
MS = 1_000_000


class Collector:
    """Receives spans and measurements by gRPC, and says what has arrived."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

        self.spans: dict[str, Any] = {}
        self.resources: list[dict[str, Any]] = []
        self.measured: dict[str, Any] = {}
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._server = grpc.server(ThreadPoolExecutor(1))
        package = "opentelemetry.proto.collector"
        for service, module, take, made in (
            ("trace.v1.TraceService", traces, self._take_spans, "Trace"),
            ("metrics.v1.MetricsService", metrics, self._take_metrics, "Metrics"),
        ):
            request = getattr(module, f"Export{made}ServiceRequest")
            response = getattr(module, f"Export{made}ServiceResponse")

            def export(message: Any, _: object, take: Any = take, response: Any = response) -> Any:
                take(message)
                self._arrived.put(None)
                return response()

            handler = grpc.unary_unary_rpc_method_handler(
                export, request_deserializer=request.FromString, response_serializer=response.SerializeToString
            )
            handlers = grpc.method_handlers_generic_handler(f"{package}.{service}", {"Export": handler})
            self._server.add_generic_rpc_handlers([handlers])
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def _take_spans(self, message: Any) -> None:
        for one in message.resource_spans:
            self.resources.append(values(one.resource.attributes))
            self.spans.update((span.name, span) for scope in one.scope_spans for span in scope.spans)

    def _take_metrics(self, message: Any) -> None:
        for one in message.resource_metrics:
            self.measured.update((metric.name, metric) for scope in one.scope_metrics for metric in scope.metrics)

    def wait(self, has_arrived: Callable[[], bool]) -> None:
        while not has_arrived():
            self._arrived.get(timeout=DEADLINE_S)

    def stop(self) -> None:
        self._server.stop(None).wait()


def values(attributes: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in attributes}


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.stop()


def test_a_start_is_a_part_of_the_launchers_trace(
    start: Start, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEPARENT", f"00-{TRACE}-{PARENT}-01")
    process = start("--lane=0", otlp_endpoint=collector.endpoint)
    process.wait_ready()
    with Client(process.socket_path) as client:
        stream = client.open()
        stream.step(first_plan())
        stream.step(decode_plan(2, 3))
        collector.wait(lambda: "start shard" in collector.spans)
        process.child.terminate()
        assert process.wait() == 0
    whole = collector.spans["start shard"]
    assert (whole.trace_id.hex(), whole.parent_span_id.hex()) == (TRACE, PARENT)
    parts = [collector.spans[name] for name in ("import", "headers", "load", "serve", "first step")]
    assert {(part.trace_id, part.parent_span_id) for part in parts} == {(whole.trace_id, whole.span_id)}
    for part in parts[:-1]:
        assert whole.start_time_unix_nano <= part.start_time_unix_nano <= part.end_time_unix_nano
        assert part.end_time_unix_nano <= whole.end_time_unix_nano
    assert parts[0].end_time_unix_nano > parts[0].start_time_unix_nano == whole.start_time_unix_nano
    assert whole.end_time_unix_nano <= parts[-1].end_time_unix_nano
    told = collector.resources[0]
    assert (told["service.name"], told["trunkline.process"], told["trunkline.lane"]) == ("trunkline", "shard", 0)
    assert told["process.pid"] == process.child.pid
    used = collector.measured["process.memory.usage"].sum.data_points[0].as_int
    assert 10 << 20 < used < 1 << 30
    kinds = {values(one.attributes)["cpu.mode"] for one in collector.measured["process.cpu.time"].sum.data_points}
    assert kinds == {"user", "system"}


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1", None])
def test_nothing_is_imported_before_a_shard_computes_or_without_a_collector(endpoint: str | None) -> None:
    """So a start takes no longer. Looking for the packages imports the namespaces that they share with others."""
    lines = f"""
import sys
from types import SimpleNamespace as S
import trunkline_server.serve, trunkline_server.service, trunkline_server.telemetry as telemetry
print(telemetry.begin(S(server=S(otlp_endpoint={endpoint!r})), 0, None) is not None)
print(*sorted(name for name in sys.modules if name.startswith("opentelemetry")))
"""
    environment = {**os.environ, "PYTHONPATH": str(SERVER)}
    done = subprocess.run([sys.executable, "-c", lines], env=environment, capture_output=True, text=True, check=True)
    is_on, imported = done.stdout.splitlines()
    namespaces = {"opentelemetry", "opentelemetry.exporter"}
    assert (is_on, set(imported.split())) == (str(endpoint is not None), namespaces if endpoint else set())


def test_variables_name_a_collector_and_turn_it_off(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(server=Settings(otlp_endpoint=None))
    assert telemetry.begin(settings, 0, None) is None
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    assert telemetry.begin(settings, 0, None) is not None
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert telemetry.begin(settings, 0, None) is None


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> tuple[Telemetry, list[Event]]:
    made = Telemetry("http://127.0.0.1:1", 3, 1)
    return made, made._events  # type: ignore[return-value]


def step(
    step_id: int, took_ms: float, *, device_ms: float | None = None, tokens: int = 1, draft_ms: int = 0
) -> StepTimes:
    chunks = [pb.Chunk(sequence_id=1, first_position=20, num_tokens=tokens)]
    free_ns, took_ns = step_id * 1000 * MS, int(took_ms * MS)
    device_us = int(1000 * (took_ms if device_ms is None else device_ms))
    return StepTimes(step_id, chunks, free_ns, free_ns + MS, free_ns + took_ns, device_us, 1000 * draft_ms)


def test_a_slow_step_has_a_span_with_its_parts(noted: tuple[Telemetry, list[Event]]) -> None:
    made, events = noted
    for index in range(MIN_STEPS):
        made.finished(step(index, 10))
    made.finished(step(20, 29))
    made.finished(step(21, 500, tokens=64))
    assert not events, "neither is slow: the other is the first of its kind"
    for index in range(22, 60):
        made.finished(step(index, 10))
    made.finished(step(60, 40, device_ms=34, draft_ms=8))
    (slow,) = events
    assert slow.name == "slow step"
    assert slow.attributes == {
        "trunkline.lane": 3, "trunkline.step_id": 60, "trunkline.step.tokens": 1, "trunkline.step.sequences": 1,
        "trunkline.step.expected_us": pytest.approx(10_100, abs=200),
    }  # fmt: skip
    lengths = {name: round((end - begin) / MS) for name, begin, end in slow.parts}
    assert lengths == {"prepare": 1, "draft": 8, "compute": 25, "wait for masks": 6}
    assert slow.parts[0][1] == slow.began_ns and slow.parts[-1][2] == slow.ended_ns


def test_steps_that_stay_longer_are_expected_after_a_while(noted: tuple[Telemetry, list[Event]]) -> None:
    made, events = noted
    for index in range(200):
        made.finished(step(index, 10 if index < 50 else 100))
    assert 5 < len(events) < 40


def test_transfers_have_spans(noted: tuple[Telemetry, list[Event]]) -> None:
    made, events = noted
    restores = [
        pb.Restore(restore_id=7, blocks=[pb.BlockRestore(slot=slot) for slot in range(5)]),
        pb.Restore(restore_id=8, blocks=[pb.BlockRestore()], store_folder="/other"),
    ]
    chunk = pb.Chunk(sequence_id=1, num_tokens=32, stores=[pb.BlockStore(slot=slot) for slot in (2, 3, 4)])
    made.begun(restores, [chunk])
    made.transferred(pb.Transfers(stores=[pb.StoreOutcome(slot=2, is_stored=True), pb.StoreOutcome(slot=3)]))
    outcomes = [pb.RestoreOutcome(restore_id=7, num_blocks=4, time_us=3000)]
    outcomes += [pb.RestoreOutcome(restore_id=8, num_blocks=1, time_us=1)]
    made.transferred(pb.Transfers(restores=outcomes))
    store, restore, other = events
    assert store.attributes == {"trunkline.lane": 3, "trunkline.blocks": 2, "trunkline.blocks.failed": 1}
    assert 0 < store.ended_ns - store.began_ns < 10_000 * MS
    assert restore.ended_ns - restore.began_ns == 3 * MS
    assert (restore.attributes["trunkline.blocks.failed"], restore.attributes["trunkline.store"]) == (1, "own")
    assert other.attributes["trunkline.store"] == "other"
    made.forgotten()
    made.transferred(pb.Transfers(stores=[pb.StoreOutcome(slot=4)]))
    assert events[-1].began_ns == events[-1].ended_ns, "its begin belongs to a stream that has ended"
