"""A client that leaves, at any moment, takes nothing with it."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time

import pytest
from harness import Trunkline, wait_for


def request_bytes(prompt: list[int], *, stream: bool) -> bytes:
    body = json.dumps(
        {"prompt": prompt, "max_tokens": 2000, "ignore_eos": True, "stream": stream, "temperature": 0}
    ).encode()
    lines = [
        "POST /v1/completions HTTP/1.1",
        "host: x",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    head = "\r\n".join([*lines, "", ""])
    return head.encode() + body


def nothing_left(server: Trunkline) -> bool:
    return server.quiet() and server.metrics()["trunkline_kv_blocks_held"] == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("delay_ms", [0, 1, 5, 20, 100, 300])
def test_disconnect_at_any_moment_frees_all_blocks(server: Trunkline, stream: bool, delay_ms: int) -> None:
    prompt = random.Random(delay_ms * 2 + stream).choices(range(100, 40_000), k=1500)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request_bytes(prompt, stream=stream))
        time.sleep(delay_ms / 1000)  # the moment of leaving is the parameter of this test, not a wait for something
    wait_for(lambda: nothing_left(server), "all blocks to be free")


def test_disconnect_in_the_middle_of_a_request_body(server: Trunkline) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request_bytes([1] * 500, stream=True)[:300])
    wait_for(lambda: nothing_left(server), "all blocks to be free")
    assert server.complete("hello", max_tokens=2)["choices"][0]["text"]


# What must be back where it was when nobody is there.
GAUGES = [
    "trunkline_running_sequences",
    "trunkline_queued_sequences",
    "trunkline_steps_in_flight",
    "trunkline_kv_blocks_held",
    "trunkline_kv_blocks_pinned",
    "trunkline_kv_blocks_late",
    "trunkline_kv_usage_ratio",
    "trunkline_object_waiting_blocks",
    "trunkline_unexpected_results_total",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
]


def test_a_thousand_starts_and_drops_leave_every_gauge_at_zero(server: Trunkline) -> None:
    noise = random.Random(3)
    for _ in range(1000):
        prompt = noise.choices(range(100, 40_000), k=noise.randint(1, 400))
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            stream = noise.random() < 0.5
            data = request_bytes(prompt, stream=stream)
            connection.sendall(data[: noise.choice([len(data), len(data), len(data) - 5])])
            if stream and noise.random() < 0.1:
                connection.settimeout(0.05)
                with contextlib.suppress(TimeoutError):
                    connection.recv(1)
    wait_for(lambda: nothing_left(server), "all blocks to be free", 60)
    metrics = server.metrics()
    assert {name: metrics[name] for name in GAUGES} == dict.fromkeys(GAUGES, 0)
    pool = [metrics[f"trunkline_kv_blocks{part}"] for part in ("", "_free", "_held", "_cached")]
    assert pool[0] == sum(pool[1:])
    assert server.complete("hello", max_tokens=2)["choices"][0]["text"]
