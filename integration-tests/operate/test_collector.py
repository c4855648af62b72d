"""OpenTelemetry's own Collector receives what a server sends.

The Go module in `collector/` has the Collector with its OTLP receiver and an exporter to a file. Building it takes
minutes of processor time where Go's cache is empty.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import free_port, serving, wait_for

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Go to build the Collector"),
]
READY = "Everything is ready"
CONFIG = """
receivers: {{otlp: {{protocols: {{grpc: {{endpoint: "127.0.0.1:{port}"}}}}}}}}
exporters: {{file: {{path: "{path}"}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [file]}}
    metrics: {{receivers: [otlp], exporters: [file]}}
"""


class Collector:
    """A running Collector."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._written, config, port = folder / "received.jsonl", folder / "config.yaml", free_port()
        config.write_text(CONFIG.format(port=port, path=self._written))
        self.endpoint = f"http://127.0.0.1:{port}"
        log = folder / "log.txt"
        with log.open("w") as told:
            self._process = subprocess.Popen([program, "--config", f"file:{config}"], stderr=told)
        try:
            wait_for(lambda: self._process.poll() is not None or READY in log.read_text(), "the Collector to start")
            assert self._process.poll() is None, log.read_text()
        except BaseException:
            self.stop()
            raise

    def spans(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Returns the spans that have arrived, each with the attributes of its process."""
        return [
            (values(one["resource"]), span)
            for message in self._messages()
            for one in message.get("resourceSpans", [])
            for scope in one["scopeSpans"]
            for span in scope["spans"]
        ]

    def measured(self) -> set[str]:
        return {
            metric["name"]
            for message in self._messages()
            for one in message.get("resourceMetrics", [])
            for scope in one["scopeMetrics"]
            for metric in scope["metrics"]
        }

    def _messages(self) -> list[Any]:
        text = self._written.read_text() if self._written.exists() else ""
        # The last line may be half written.
        return [json.loads(line) for line in text.split("\n")[:-1]]

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


def values(resource: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in resource["attributes"]}


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    program, module = tmp_path / "otelcol", Path(__file__).parent / "collector"
    built = subprocess.run(["go", "build", "-o", program, "."], cwd=module, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    collector = Collector(program, tmp_path)
    yield collector
    collector.stop()


def test_a_start_and_a_request_arrive(collector: Collector) -> None:
    # The environment that serves has no extras, but that of the tests has.
    environment = {"OTEL_METRIC_EXPORT_INTERVAL": "1000", "PYTHONPATH": sysconfig.get_path("purelib")}
    with serving("--otlp-endpoint", collector.endpoint, env=environment) as server:
        server.chat("Hello")
        wanted = {"start", "resolve", "start router", "start shard", "load", "first step", "prefill", "decode"}
        wait_for(lambda: wanted <= {span["name"] for _, span in collector.spans()}, "the spans")
        metrics = {"gen_ai.server.time_to_first_token", "process.memory.usage"}
        wait_for(lambda: metrics <= collector.measured(), "the measurements")
    spans = collector.spans()
    assert {process["service.name"] for process, _ in spans} == {"trunkline"}
    by_name = {span["name"]: span for _, span in spans}
    of_start = {by_name[name]["traceId"] for name in ("start", "resolve", "start router", "start shard", "first step")}
    assert of_start == {by_name["load"]["traceId"]}
    assert by_name["decode"]["traceId"] == by_name["prefill"]["traceId"] != by_name["start"]["traceId"]
