"""Spans and measurements by OpenTelemetry's SDK. Only the thread of `telemetry.py` imports this.

The standard variables `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`,
`OTEL_METRIC_EXPORT_*` and `OTEL_EXPORTER_OTLP_*` hold, as in the router.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import resource
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from opentelemetry.context import Context
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# The modules and paths of the protocols by the names that `OTEL_EXPORTER_OTLP_PROTOCOL` takes.
_PROTOCOLS = {"grpc": ("grpc", "", ""), "http/protobuf": ("http", "/v1/traces", "/v1/metrics")}
_STOP_LIMIT_MS = 2000


class Exporter:
    """Sends spans and measurements of this process. Raises ImportError, or ValueError for an unknown protocol."""

    def __init__(self, endpoint: str, lane: int) -> None:
        name = os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL") or "grpc"
        if name not in _PROTOCOLS:
            raise ValueError(f"`OTEL_EXPORTER_OTLP_PROTOCOL` is {name!r}; hint: use `grpc` or `http/protobuf`")
        module, traces, metrics = _PROTOCOLS[name]
        package, base = f"opentelemetry.exporter.otlp.proto.{module}", endpoint.rstrip("/")
        spans = importlib.import_module(f"{package}.trace_exporter").OTLPSpanExporter(endpoint=base + traces)
        measured = importlib.import_module(f"{package}.metric_exporter").OTLPMetricExporter(endpoint=base + metrics)
        described = Resource.create(_attributes(lane))
        self._spans = TracerProvider(resource=described, shutdown_on_exit=False)
        self._spans.add_span_processor(BatchSpanProcessor(spans))
        self._tracer = self._spans.get_tracer("trunkline")
        reader = PeriodicExportingMetricReader(measured)
        self._measured = MeterProvider([reader], resource=described, shutdown_on_exit=False)
        _measure(self._measured)

    def start(self, name: str, began_ns: int, ended_ns: int, parts: Iterable[tuple[str, int, int]]) -> Context:
        """Sends the span of the start, in the trace that `TRACEPARENT` names, and those of its parts."""
        inherited = {"traceparent": os.environ.get("TRACEPARENT", "")}
        whole = self.span(name, began_ns, ended_ns, {}, TraceContextTextMapPropagator().extract(inherited, Context()))
        for part in parts:
            self.span(*part, {}, whole)
        return whole

    def span(
        self,
        name: str,
        began_ns: int,
        ended_ns: int,
        attributes: Mapping[str, int | str],
        parent: Context | None = None,
    ) -> Context:
        """Sends a span and returns the context of those inside it. parent: None begins a trace."""
        context = Context() if parent is None else parent
        span = self._tracer.start_span(name, context, attributes=attributes, start_time=began_ns)
        span.end(ended_ns)
        return set_span_in_context(span, Context())

    def stop(self) -> None:
        """Sends what is left, for some seconds at most."""
        self._spans.force_flush(_STOP_LIMIT_MS)
        self._measured.shutdown(_STOP_LIMIT_MS)
        self._spans.shutdown()


def _attributes(lane: int) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "process.pid": os.getpid(),
        "trunkline.process": "shard",
        "trunkline.lane": lane,
    }
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes["service.name"] = "trunkline"
    with contextlib.suppress(metadata.PackageNotFoundError):
        attributes["service.version"] = metadata.version("trunkline-server")
    return attributes


def _measure(provider: MeterProvider) -> None:
    """Measures the process, by the names of OpenTelemetry's conventions."""
    meter, began = provider.get_meter("trunkline"), time.monotonic()

    def cpu(_: CallbackOptions) -> Iterator[Observation]:
        times = os.times()
        yield Observation(times.user, {"cpu.mode": "user"})
        yield Observation(times.system, {"cpu.mode": "system"})

    def memory(_: CallbackOptions) -> Iterator[Observation]:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123
            yield Observation(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))

    def faults(_: CallbackOptions) -> Iterator[Observation]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield Observation(used.ru_majflt, {"process.paging.fault_type": "major"})
        yield Observation(used.ru_minflt, {"process.paging.fault_type": "minor"})

    def entries(folder: str) -> Iterator[Observation]:
        yield Observation(len(os.listdir(folder)))  # noqa: PTH208

    meter.create_observable_counter("process.cpu.time", [cpu], "s")
    meter.create_observable_counter("process.paging.faults", [faults], "{fault}")
    meter.create_observable_up_down_counter("process.memory.usage", [memory], "By")
    meter.create_observable_up_down_counter("process.thread.count", [lambda _: entries("/proc/self/task")], "{thread}")
    meter.create_observable_up_down_counter(
        "process.unix.file_descriptor.count", [lambda _: entries("/proc/self/fd")], "{file_descriptor}"
    )
    meter.create_observable_gauge("process.uptime", [lambda _: [Observation(time.monotonic() - began)]], "s")
