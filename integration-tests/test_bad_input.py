"""Invalid input gets a clear error, takes no memory and does not affect other requests."""

from __future__ import annotations

import socket

import httpx
import pytest
from harness import Trunkline, http, resident_bytes, wait_for

CHAT = "/v1/chat/completions"
JSON = {"content-type": "application/json"}
USER = [{"role": "user", "content": "hi"}]
# Values beyond limits that the launcher passes to the router. router/tests/router/errors.rs covers types, ranges and
# malformed bodies.
BEYOND_LIMITS: dict[str, list[object]] = {
    "max_tokens": [10**12],
    "top_k": [10**12],
    "stop": [["x"] * 100, ["y" * 100_000]],
    "n": [10**9],
    "min_tokens": [10**9],
    "top_logprobs": [21],
}
BLOCKS_IN_USE = ("trunkline_kv_blocks_held", "trunkline_running_sequences", "trunkline_queued_sequences")


def is_openai_error(answer: httpx.Response) -> bool:
    error = answer.json()["error"]
    return bool(error["message"]) and bool(error["type"])


@pytest.mark.parametrize("field", BEYOND_LIMITS)
def test_error_names_the_field_with_a_value_beyond_its_limit(server: Trunkline, field: str) -> None:
    for value in BEYOND_LIMITS[field]:
        body = {"messages": USER, "logprobs": True, "max_tokens": 4} | {field: value}
        answer = http.post(server.base_url + CHAT, json=body)
        assert answer.status_code == 400, f"{field}: {answer.text}"
        assert is_openai_error(answer)
        assert f"`{field}" in answer.json()["error"]["message"]


def test_token_id_outside_the_vocabulary_is_refused(server: Trunkline) -> None:
    answer = http.post(f"{server.base_url}/v1/completions", json={"prompt": [1, 2, 10**6]})
    assert answer.status_code == 400
    assert "`prompt[2]` is 1000000" in answer.json()["error"]["message"]


def test_body_of_50_mb_is_refused_without_buffering_it(server: Trunkline) -> None:
    pid = server.router_pid()
    before = resident_bytes(pid)
    chunk = b" " * (1 << 20)
    answer = http.post(server.base_url + CHAT, content=(chunk for _ in range(50)), headers=JSON, timeout=60)
    assert answer.status_code == 413, answer.text
    assert is_openai_error(answer)
    assert resident_bytes(pid) - before < 32 << 20


def test_garbage_on_the_socket_leaves_the_server_serving(server: Trunkline) -> None:
    for garbage in (b"\0" * 4096, b"GET / HTTP/9.9\r\n\r\n", b"POST /generate HTTP/1.1\r\ncontent-length: -5\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert server.complete("hello", max_tokens=2)["choices"][0]["text"]


def test_bad_input_leaves_no_blocks_in_use(server: Trunkline) -> None:
    # The gauges may lag behind the end of a request.
    wait_for(lambda: not any(server.metrics()[name] for name in BLOCKS_IN_USE), "every block to be free")
