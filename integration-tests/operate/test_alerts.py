"""Every alert's fault, made on a real server: the metrics that the alert reads show it, and its remedy ends it."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import harness
import pytest
import yaml
from disk import Disk
from faults import Files, state
from harness import EMBEDDED, ROOT, START_DEADLINE_S, Trunkline, http, wait_for
from streams import WatchedStream

# Faults that depend on time take as long as with a model that is in use.
serving = functools.partial(harness.serving, model=EMBEDDED)

RULES = ROOT / "deploy/helm/trunkline/monitoring/alerts.yaml"
# A result that matches no plan is a defect, so nothing outside the server can cause one. The metrics of lanes are shown
# by `test_replicas.py`, which loses the shard of one.
NOT_MADE = {"TrunklineUnexpectedResult", "TrunklineLaneAway", "TrunklineLaneRestarting"}
# Shows the fault of a server: makes it, waits for the named metrics, and mends it.
Fault = Callable[[Path], None]
FAULTS: dict[str, tuple[Fault, tuple[str, ...]]] = {}


def fault(*metrics: str, alerts: tuple[str, ...]) -> Callable[[Fault], Fault]:
    """Registers the fault of alerts, which read these metrics."""

    def register(make: Fault) -> Fault:
        FAULTS.update({f"Trunkline{alert}": (make, metrics) for alert in alerts})
        return make

    return register


def total(server: Trunkline, metric: str) -> float:
    """Returns the sum of a metric's samples, whatever their labels."""
    return sum(value for name, value in server.metrics().items() if name.partition("{")[0] == metric)


def wait_above(server: Trunkline, metric: str, value: float = 0.0, deadline_s: float = 60.0) -> None:
    wait_for(lambda: total(server, metric) > value, f"{metric} above {value}", deadline_s)


def wait_ready(server: Trunkline) -> None:
    wait_for(server.is_ready, "readiness", START_DEADLINE_S)


def num_late(server: Trunkline, histogram: str, limit: str) -> float:
    samples = server.metrics()
    return samples[f"{histogram}_count"] - samples[f'{histogram}_bucket{{le="{limit}"}}']


@contextmanager
def flood(
    server: Trunkline, num_requests: int, max_tokens: int, prompt: str | list[int] = "The sea is"
) -> Iterator[None]:
    """Sends requests at once inside a `with` block, and waits for their ends at its end, whatever they are."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}

    def send(number: int) -> None:
        url = f"{server.base_url}/v1/completions"
        http.post(url, json=body | {"seed": number}, headers=server.headers, timeout=300)

    with ThreadPoolExecutor(num_requests) as pool:
        sent = [pool.submit(send, number) for number in range(num_requests)]
        yield
        for future in sent:
            future.result()


@fault("trunkline_shard_ready", alerts=("NoShardReady",))
def a_shard_that_does_not_start(_: Path) -> None:
    with serving() as server:
        shard = server.shard_pid()
        os.kill(shard, signal.SIGKILL)
        (another,) = wait_for(lambda: [pid for pid in server.pids("trunkline_server") if pid != shard], "another shard")
        os.kill(another, signal.SIGSTOP)
        try:
            wait_for(lambda: state(another) == "T", "the shard to stop")
            wait_for(lambda: total(server, "trunkline_shard_ready") == 0, "no ready shard")
            assert http.get(f"{server.base_url}/readyz").status_code == 503
        finally:
            os.kill(another, signal.SIGCONT)
        wait_ready(server)
        assert total(server, "trunkline_shard_ready") == 1


@fault("trunkline_queued_sequences", alerts=("QueueGrowing",))
@fault("trunkline_time_to_first_token_seconds_bucket", alerts=("FirstTokenLateFastBurn", "FirstTokenLateSlowBurn"))
def more_work_than_the_server_can_do(_: Path) -> None:
    with serving("--max-step-sequences", "1") as server, flood(server, 24, 100):
        wait_above(server, "trunkline_queued_sequences", 8)
        late = "trunkline_time_to_first_token_seconds"
        wait_for(lambda: num_late(server, late, "2.048") > 0, "a late first token", 60)
        wait_for(lambda: total(server, "trunkline_queued_sequences") == 0, "the end of the queue", 120)


@fault("trunkline_rejections_total", "trunkline_http_requests_total", alerts=("Rejecting",))
def more_requests_than_the_server_takes(_: Path) -> None:
    with serving("--max-concurrent-requests", "2") as server:
        with flood(server, 12, 60):
            wait_above(server, "trunkline_rejections_total")
            wait_above(server, "trunkline_http_requests_total")
        assert server.complete("The sea is")["choices"]


@fault("trunkline_inter_token_seconds_bucket", alerts=("TokenLateFastBurn", "TokenLateSlowBurn"))
def steps_that_take_too_long(_: Path) -> None:
    with serving() as server, WatchedStream(server):
        late, shard = "trunkline_inter_token_seconds", server.shard_pid()
        before = num_late(server, late, "0.128")
        os.kill(shard, signal.SIGSTOP)
        try:
            wait_for(lambda: state(shard) == "T", "the shard to stop")
            # Longer than the limit of 128 ms, by the clock of the gaps themselves.
            stopped = time.monotonic()
            wait_for(lambda: time.monotonic() > stopped + 0.3, "the gap to grow")
        finally:
            os.kill(shard, signal.SIGCONT)
        wait_for(lambda: num_late(server, late, "0.128") > before, "a late token")


@fault("trunkline_sequences_replayed_total", "trunkline_shard_ready", alerts=("ShardRestarting",))
def a_shard_that_is_killed(_: Path) -> None:
    with serving() as server:
        with WatchedStream(server):
            os.kill(server.shard_pid(), signal.SIGKILL)
            wait_above(server, "trunkline_sequences_replayed_total")
        wait_ready(server)


@fault("trunkline_sequences_convicted_total", alerts=("RequestCrashesShard",))
def a_request_under_which_the_shard_crashes_twice(_: Path) -> None:
    with serving() as server:
        # A long prompt, so that the request has not yet passed the place of the first crash at the second one.
        with flood(server, 1, 1, prompt=list(range(1000, 8000))):
            for _ in range(2):
                wait_above(server, "trunkline_steps_in_flight")
                wait_for(lambda: total(server, "vllm:num_requests_running") == 1, "the request to run", 60)
                os.kill(server.shard_pid(), signal.SIGKILL)
                wait_for(lambda: total(server, "trunkline_shard_ready") == 0, "the loss of the shard")
            wait_above(server, "trunkline_sequences_convicted_total")
        wait_ready(server)
        assert server.complete("The sea is")["choices"]


@fault("trunkline_kv_usage_ratio", "trunkline_preemptions_total", alerts=("KvFull",))
def sequences_that_need_more_blocks_than_there_are(_: Path) -> None:
    with serving("--max-batch-total-tokens", "2048") as server, flood(server, 6, 900):
        wait_for(lambda: total(server, "trunkline_kv_usage_ratio") > 0.95, "a full pool", 60)
        wait_above(server, "trunkline_preemptions_total")


@fault("trunkline_store_failures_total", alerts=("StoreFailing",))
def a_full_disk(folder: Path) -> None:
    disk = Disk(folder)
    with serving("--kv-disk-path", str(folder / "kv"), "--kv-disk-size", "64MiB", env=disk.env) as server:
        disk.fill(True)
        server.complete(list(range(1000, 1400)))
        wait_above(server, "trunkline_store_failures_total")
        disk.fill(False)
        prompts = itertools.count(2000, 500)

        def is_stored() -> bool:
            """Computes other blocks, because those that were refused are not written later."""
            first = next(prompts)
            server.complete(list(range(first, first + 400)))
            return total(server, "trunkline_store_blocks") > 0

        wait_for(is_stored, "blocks on the disk", 60)


@fault("trunkline_restores_given_up_total", alerts=("RestoresGivenUp",))
def a_slow_disk(folder: Path) -> None:
    disk, prompt = Disk(folder), list(range(1000, 1700))
    flags = ("--kv-disk-path", str(folder / "kv"), "--kv-disk-size", "64MiB")
    with serving(*flags, env=disk.env) as server:
        before = server.complete(prompt)
        wait_above(server, "trunkline_store_blocks", len(prompt) // 64 - 1)
    with serving(*flags, env=disk.env) as server:
        disk.slow(4.0)
        answer = server.complete(prompt)
        assert answer["choices"] == before["choices"]
        wait_above(server, "trunkline_restores_given_up_total")
        disk.slow(0)
        wait_for(lambda: total(server, "trunkline_kv_blocks_late") == 0, "the end of late restores", 60)


@fault("trunkline_object_failures_total", alerts=("ObjectStoreFailing",))
def an_object_store_that_is_away(folder: Path) -> None:
    objects = folder / "objects"
    flags = ("--kv-disk-path", str(folder / "kv"), "--kv-disk-size", "64MiB", "--kv-object-store", f"file://{objects}")
    with serving(*flags) as server:
        shutil.rmtree(objects, ignore_errors=True)
        objects.write_text("not a folder")
        server.complete(list(range(1000, 1400)))
        wait_above(server, "trunkline_object_failures_total")
        objects.unlink()
        objects.mkdir()
        server.complete(list(range(2000, 2400)))
        wait_above(server, "trunkline_object_uploaded_blocks_total")


@fault("trunkline_tls_reload_failures_total", alerts=("CertificateUnusable",))
def a_renewed_certificate_that_has_expired(folder: Path) -> None:
    files = Files(folder)
    with serving("--tls-cert", str(files.certificate), "--tls-key", str(files.key)) as server:
        files.write_pair("expired", "first")
        wait_above(server, "trunkline_tls_reload_failures_total")
        files.write_pair("second", "second")
        wait_above(server, "trunkline_tls_reloads_total")


def alerts() -> dict[str, str]:
    """Returns the expression of each alert, with those of the series that it takes from other rules."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    series = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    found = {}
    for rule in rules:
        if "alert" in rule:
            taken = re.findall(r"trunkline:[a-z_0-9:]+", rule["expr"])
            found[rule["alert"]] = " ".join([rule["expr"], *(series[name] for name in taken)])
    return found


def test_each_alert_has_a_fault_that_moves_what_it_reads() -> None:
    expressions = alerts()
    assert FAULTS.keys() | NOT_MADE == expressions.keys()
    for alert, (_, metrics) in FAULTS.items():
        for metric in metrics:
            assert re.search(rf"\b{metric}\b", expressions[alert]), f"{alert} does not read {metric}"


@pytest.mark.full
@pytest.mark.parametrize(
    "make", {make.__name__: make for make, _ in FAULTS.values()}.values(), ids=lambda m: m.__name__
)
def test_the_fault_shows_in_the_metrics_and_its_remedy_ends_it(make: Fault, tmp_path: Path) -> None:
    make(tmp_path)
