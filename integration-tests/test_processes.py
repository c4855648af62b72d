"""Real processes, real signals, real kills."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from harness import (
    START_DEADLINE_S,
    TRUNKLINE,
    Trunkline,
    alive,
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
    """A server whose processes are killed by tests that leave it serving again."""
    with serving() as running:
        yield running


def run_to_end(*args: str) -> tuple[int, str]:
    """Runs `trunkline` to its end; returns the exit code and what it wrote to stderr."""
    done = subprocess.run([TRUNKLINE, *args], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    return done.returncode, done.stderr


def is_ready(server: Trunkline) -> bool:
    try:
        return http.get(f"{server.base_url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def test_ready_prints_an_address_and_a_curl_that_works(harmed: Trunkline) -> None:
    banner = "".join(harmed.banner)
    assert harmed.base_url in banner
    curl = banner[banner.index("curl") :].strip().replace("\\\n", " ")
    assert shutil.which("curl"), "curl is missing; hint: on Debian, apt-get install curl"
    answer = subprocess.run(["sh", "-c", f"{curl} --silent --fail"], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stderr
    assert "content" in answer.stdout


def test_shard_killed_in_mid_stream_is_an_error_event_and_a_restart(harmed: Trunkline) -> None:
    shard = harmed.shard_pid()
    events = []
    with http.stream("POST", harmed.base_url + CHAT, json=LONG, timeout=60) as stream:
        for event in sse_events(stream.iter_lines()):
            events.append(event)
            if len(events) == 8:
                os.kill(shard, signal.SIGKILL)
    assert len(events) >= 8
    assert "error" in events[-1] or "error" in events[-2], events[-3:]
    wait_for(lambda: is_ready(harmed), "readiness after the kill", START_DEADLINE_S)
    assert harmed.shard_pid() != shard
    assert harmed.chat("hello", max_tokens=4)["usage"]["completion_tokens"] > 0
    # The end of a request is counted after its answer was sent.
    wait_for(harmed.quiet, "the end of all requests")


def test_router_killed_is_restarted(harmed: Trunkline) -> None:
    router, shard = harmed.router_pid(), harmed.shard_pid()
    os.kill(router, signal.SIGKILL)
    wait_for(
        lambda: is_ready(harmed) and harmed.pids("trunkline-router") != [router], "another router", START_DEADLINE_S
    )
    assert harmed.shard_pid() == shard, "the weights stay loaded"
    assert harmed.complete("hello", max_tokens=2)["choices"][0]["text"]


def test_sigterm_refuses_new_requests_finishes_streams_and_leaves_nothing() -> None:
    server = Trunkline("--graceful-termination-timeout", "30").wait_ready()
    runtime = Path(server.runtime.name)
    with http.stream("POST", server.base_url + CHAT, json=LONG | {"max_tokens": 200}, timeout=60) as stream:
        events = sse_events(stream.iter_lines())
        next(events)
        server.process.send_signal(signal.SIGTERM)
        # While the stream runs the router listens: a refused connection would fail the test.
        wait_for(lambda: refused(server), "new requests to be refused")
        received = list(events)
    assert received[-1] == "[DONE]"
    assert received[-2]["choices"][0]["finish_reason"] == "length"
    assert server.process.wait(30) == 0
    assert not [path for path in runtime.rglob("*") if path.is_socket()]
    server.stop()


def refused(server: Trunkline) -> bool:
    """Whether the server answers that it takes no new requests."""
    answer = http.post(server.base_url + CHAT, json=LONG | {"stream": False, "max_tokens": 1}, timeout=10)
    return answer.status_code == 503 and "retry-after" in answer.headers


def test_killed_launcher_takes_its_children_along() -> None:
    server = Trunkline().wait_ready()
    children = list(descendants(server.process.pid))
    assert len(children) >= 2
    server.process.kill()
    server.process.wait()
    wait_for(lambda: not any(alive(pid) for pid in children), "children of a killed launcher to end", 10)
    assert not [path for path in Path(server.runtime.name).rglob("*") if path.is_socket()]
    server.close()


def assert_one_error_line(stderr: str, *words: str) -> None:
    errors = [line for line in stderr.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, stderr
    assert "Traceback" not in stderr
    for word in words:
        assert word in errors[0], errors[0]


def test_missing_model_is_one_line(tmp_path: Path) -> None:
    code, stderr = run_to_end("serve", str(tmp_path / "none.gguf"))
    assert code != 0
    assert_one_error_line(stderr, "none.gguf")


def damaged(tmp_path: Path, kind: str) -> Path:
    """A copy of the embedded model that is damaged in one way."""
    path = tmp_path / f"{kind}.gguf"
    data = bytearray(embedded_gguf().read_bytes())
    if kind == "truncated":
        del data[len(data) // 2 :]
    elif kind == "empty":
        data.clear()
    elif kind == "not_gguf":
        data[:4] = b"ELF!"
    elif kind == "many_tensors":
        data[8:16] = (1 << 60).to_bytes(8, "little")
    elif kind == "flipped_header":
        data[16] ^= 0xFF
        data[24] ^= 0x55
    path.write_bytes(data)
    return path


# Every kind of damage is refused in server/tests/weights/test_damage.py; here the refusal goes through all processes.
@pytest.mark.parametrize(
    "kind",
    [
        "truncated",
        *(pytest.param(k, marks=pytest.mark.full) for k in ("empty", "not_gguf", "many_tensors", "flipped_header")),
    ],
)
def test_damaged_model_is_one_line(tmp_path: Path, kind: str) -> None:
    code, stderr = run_to_end("serve", str(damaged(tmp_path, kind)))
    assert code != 0
    assert_one_error_line(stderr, f"{kind}.gguf")


def test_unsupported_architecture_is_named(tmp_path: Path) -> None:
    tokenizer = {
        "version": "1.0",
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]})
    )
    code, stderr = run_to_end("serve", str(tmp_path))
    assert code != 0
    assert_one_error_line(stderr, "t5")


def test_model_that_does_not_fit_is_refused_with_numbers() -> None:
    code, stderr = run_to_end("serve", "--max-batch-total-tokens", "4000000000")
    assert code != 0
    assert_one_error_line(stderr, "--max-batch-total-tokens")


@pytest.mark.alone
def test_idle_server_is_quiet() -> None:
    # Two threads: with one there is none that could spin.
    with serving("--threads", "2") as server:
        server.complete("hello", max_tokens=8)
        wait_for(server.quiet, "the end of the request")
        pids = [server.process.pid, *descendants(server.process.pid)]

        def ticks() -> int:
            total = 0
            for pid in pids:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
            return total

        # The one measure in this suite that needs time to pass: CPU ticks (1/100 s) of 3 idle seconds, bound 2 %.
        begin = ticks()
        time.sleep(3)
        assert ticks() - begin <= 6


def test_env_says_what_a_bug_report_needs() -> None:
    done = subprocess.run([TRUNKLINE, "env"], capture_output=True, text=True, timeout=60, check=True)
    for word in ("trunkline", "python", "avx", "router", "memory"):
        assert word in done.stdout.lower(), done.stdout


def test_serving_environment_holds_no_torch() -> None:
    python = TRUNKLINE.parent / "python"
    done = subprocess.run([python, "-c", "import torch"], capture_output=True, text=True)
    assert "ModuleNotFoundError" in done.stderr
