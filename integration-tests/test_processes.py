"""Start, restart, drain and end of the launcher's processes, with real signals and kills."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import (
    START_DEADLINE_S,
    TRUNKLINE,
    Trunkline,
    descendants,
    embedded_gguf,
    http,
    serving,
    sse_events,
    wait_for,
)

CHAT = "/v1/chat/completions"
LONG = {
    "messages": [{"role": "user", "content": "Count."}],
    "max_tokens": 4000,
    "ignore_eos": True,
    "stream": True,
    "temperature": 0,
}


@pytest.fixture(scope="module")
def harmed() -> Iterator[Trunkline]:
    """A server whose processes are killed by tests, which wait until it serves again."""
    with serving() as running:
        yield running


def run_to_end(*args: str) -> tuple[int, str]:
    """Runs `trunkline` until it exits and returns the exit code and its stderr."""
    done = subprocess.run([TRUNKLINE, *args], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return done.returncode, done.stderr


def test_banner_has_the_address_and_a_curl_command_that_works(harmed: Trunkline) -> None:
    banner = "".join(harmed.banner)
    assert harmed.base_url in banner
    curl = banner[banner.index("curl") :].strip().replace("\\\n", " ")
    assert shutil.which("curl"), "curl is missing; hint: on Debian, apt-get install curl"
    answer = subprocess.run(["sh", "-c", f"{curl} --silent --fail"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert "content" in answer.stdout


SURVIVORS: list[dict[str, Any]] = [
    {"max_tokens": 60, "temperature": 0, "ignore_eos": True},
    {"max_tokens": 60, "temperature": 0.9, "seed": 7, "n": 2, "logprobs": True},
    {"max_tokens": 60, "temperature": 0.9, "seed": 8, "response_format": {"type": "json_object"}},
]


def choices(server: Trunkline, index: int, on_event: Callable[[int], None] = lambda _: None) -> dict[int, list[Any]]:
    """Streams one of the chats and returns each choice's deltas with their logprobs and its finish reason.

    `on_event` is called with the number of events so far.
    """
    body = {"messages": [{"role": "user", "content": f"Tell me about item {index}."}], "stream": True}
    found: dict[int, list[Any]] = {}
    with http.stream("POST", server.base_url + CHAT, json=body | SURVIVORS[index], timeout=60) as stream:
        assert stream.status_code == 200
        for count, event in enumerate(sse_events(stream.iter_lines()), start=1):
            on_event(count)
            if event != "[DONE]":
                assert "error" not in event, event
                for choice in event["choices"]:
                    found.setdefault(choice["index"], []).append(
                        (choice["delta"], choice["logprobs"], choice["finish_reason"])
                    )
    return found


def test_streams_survive_a_killed_shard_with_the_same_text(harmed: Trunkline) -> None:
    expected = [choices(harmed, index) for index in range(len(SURVIVORS))]
    shard = harmed.shard_pid()
    # The shard is killed once every stream has begun.
    begun = threading.Barrier(len(SURVIVORS), action=lambda: os.kill(shard, signal.SIGKILL))

    def on_event(count: int) -> None:
        if count == 5:
            begun.wait(START_DEADLINE_S)

    with ThreadPoolExecutor() as pool:
        survived = list(pool.map(lambda index: choices(harmed, index, on_event), range(len(SURVIVORS))))
    assert survived == expected
    assert harmed.shard_pid() != shard
    wait_for(harmed.is_ready, "readiness after the kill", START_DEADLINE_S)
    wait_for(harmed.is_idle, "the end of all requests")


def test_hung_shard_is_killed_and_restarted() -> None:
    with serving("--stuck-step-timeout", "5", "--hung-shard-factor", "1") as server:
        shard, router = server.shard_pid(), server.router_pid()
        os.kill(shard, signal.SIGSTOP)
        wait_for(lambda: server.pids("trunkline_server") not in ([shard], []), "another shard", START_DEADLINE_S)
        wait_for(server.is_ready, "readiness after the kill", START_DEADLINE_S)
        assert server.complete("hello", max_tokens=2)["choices"][0]["text"]
        assert server.router_pid() == router
        assert http.get(f"{server.base_url}/livez").status_code == 200
        assert f"hangs; killing it process=shard pid={shard}" in server.log()


def test_sigterm_refuses_new_requests_finishes_streams_and_leaves_no_process() -> None:
    server = Trunkline("--graceful-termination-timeout", "30").wait_ready()
    runtime = Path(server.runtime.name)
    with http.stream("POST", server.base_url + CHAT, json=LONG | {"max_tokens": 200}, timeout=60) as stream:
        events = sse_events(stream.iter_lines())
        next(events)
        server.process.send_signal(signal.SIGTERM)
        # The router keeps listening while the stream runs; a refused connection would raise here.
        wait_for(lambda: refuses_requests(server), "new requests to be refused")
        received = list(events)
    assert received[-1] == "[DONE]"
    assert received[-2]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(30) == 0
    assert not [path for path in runtime.rglob("*") if path.is_socket()]
    server.stop()


def refuses_requests(server: Trunkline) -> bool:
    """Returns True if the server refuses a request with 503."""
    answer = http.post(server.base_url + CHAT, json=LONG | {"stream": False, "max_tokens": 1}, timeout=10)
    return answer.status_code == 503 and "retry-after" in answer.headers


def assert_one_error_line(stderr: str, *words: str) -> None:
    errors = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, stderr
    assert "Traceback" not in stderr
    for word in words:
        assert word in errors[0], errors[0]


def test_missing_model_is_reported_in_one_line(tmp_path: Path) -> None:
    code, stderr = run_to_end("serve", str(tmp_path / "none.gguf"))
    assert code != 0
    assert_one_error_line(stderr, "none.gguf")


# server/tests covers every kind of damage, unsupported models and pools. Here the error passes through all processes.
def test_damaged_model_is_reported_in_one_line(tmp_path: Path) -> None:
    data = embedded_gguf().read_bytes()
    (tmp_path / "truncated.gguf").write_bytes(data[: len(data) // 2])
    code, stderr = run_to_end("serve", str(tmp_path / "truncated.gguf"))
    assert code != 0
    assert_one_error_line(stderr, "truncated.gguf")


@pytest.mark.alone
def test_idle_server_uses_no_cpu() -> None:
    # With only one thread, none would wait for others and spin. The cache would be written while the test measures.
    with serving("--threads", "2", "--weights-cache", "off") as server:
        server.complete("hello", max_tokens=8)
        wait_for(server.is_idle, "the end of the request")
        pids = [server.process.pid, *descendants(server.process.pid)]

        def ticks() -> int:
            total = 0
            for pid in pids:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
            return total

        def is_quiet() -> bool:
            # A tick is 10 ms, so 6 ticks in 3 s are 2 % of one core. This is the only test that has to let time pass.
            begin = ticks()
            time.sleep(3)
            return ticks() - begin <= 6

        # Work that may wait until the server is ready goes on for a moment.
        wait_for(is_quiet, "the server to be idle")


def test_serving_environment_has_no_torch() -> None:
    python = TRUNKLINE.parent / "python"
    done = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in done.stderr
