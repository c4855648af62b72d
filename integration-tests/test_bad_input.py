"""What clients get wrong is answered clearly, costs no memory and hurts nobody."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import httpx
import pytest
from harness import Trunkline

CHAT = "/v1/chat/completions"
GENERATE = "/generate"
JSON = {"content-type": "application/json"}
USER = [{"role": "user", "content": "hi"}]

BODIES: dict[str, bytes] = {
    "empty": b"",
    "not_json": b"hello",
    "truncated": b'{"messages": [{"role": "user"',
    "trailing_garbage": b'{"messages": [{"role": "user", "content": "x"}]} x',
    "invalid_utf8": b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "lone_surrogate": b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
    "top_level_list": b"[]",
    "deep_nesting": b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "messages_string": b'{"messages": "hi"}',
    "message_without_role": b'{"messages": [{"content": "x"}]}',
    "content_number": b'{"messages": [{"role": "user", "content": 5}]}',
    "image_part": b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}',
    "unknown_role": b'{"messages": [{"role": "king", "content": "x"}]}',
}

FIELDS: dict[str, list[object]] = {
    "max_tokens": [0, -1, 10**12, 1.5, "5"],
    "temperature": [-0.1, 1e30, "hot", [1]],
    "top_p": [-0.01, -1, 1.01],
    "top_k": [-2, 10**12, 0.5],
    "min_p": [-0.5, 2],
    "seed": [-(2**70), 2**70, "x"],
    "stop": [5, [""], ["x"] * 100, ["y" * 100_000], [5]],
    "top_logprobs": [21, -1],
    "presence_penalty": [3, -3],
    "repetition_penalty": [0, -1],
    "n": [0, 1.5, 10**9],
    "stream": ["yes"],
    "min_tokens": [-1, 10**9],
}


def is_openai_error(answer: httpx.Response) -> bool:
    error = answer.json()["error"]
    return bool(error["message"]) and bool(error["type"])


@pytest.mark.parametrize("name", BODIES)
def test_malformed_chat_is_a_clear_400(server: Trunkline, name: str) -> None:
    answer = httpx.post(server.base_url + CHAT, content=BODIES[name], headers=JSON)
    assert answer.status_code == 400, answer.text
    assert is_openai_error(answer)


@pytest.mark.parametrize("name", ["empty", "not_json", "truncated", "invalid_utf8", "top_level_list"])
def test_malformed_generate_has_tgi_shape(server: Trunkline, name: str) -> None:
    answer = httpx.post(server.base_url + GENERATE, content=BODIES[name], headers=JSON)
    assert answer.status_code in (400, 422), answer.text
    assert set(answer.json()) >= {"error", "error_type"}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in FIELDS.items() for v in values])
def test_absurd_field_is_named(server: Trunkline, field: str, value: object) -> None:
    body = {"messages": USER, "logprobs": True, "max_tokens": 4} | {field: value}
    answer = httpx.post(server.base_url + CHAT, json=body)
    assert answer.status_code == 400, f"{field}={value!r}: {answer.text}"
    assert is_openai_error(answer)
    assert field in answer.json()["error"]["message"]


def test_not_a_number_is_refused(server: Trunkline) -> None:
    body = json.dumps({"messages": USER, "temperature": float("nan")}).encode()
    answer = httpx.post(server.base_url + CHAT, content=body, headers=JSON)
    assert answer.status_code == 400


def test_token_ids_outside_the_vocabulary_are_refused(server: Trunkline) -> None:
    answer = httpx.post(f"{server.base_url}/v1/completions", json={"prompt": [1, 2, 10**6]})
    assert answer.status_code == 400
    assert "prompt" in answer.json()["error"]["message"]


def test_body_of_50_mb_is_refused_without_memory(server: Trunkline) -> None:
    pid = server.router_pid()
    before = resident_bytes(pid)
    chunk = b" " * (1 << 20)
    answer = httpx.post(server.base_url + CHAT, content=(chunk for _ in range(50)), headers=JSON, timeout=60)
    assert answer.status_code == 413, answer.text
    assert is_openai_error(answer)
    assert resident_bytes(pid) - before < 32 << 20


def test_garbage_on_the_socket_hurts_nobody(server: Trunkline) -> None:
    for garbage in (b"\0" * 4096, b"GET / HTTP/9.9\r\n\r\n", b"POST /generate HTTP/1.1\r\ncontent-length: -5\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert server.complete("hello", max_tokens=2)["choices"][0]["text"]


def test_server_is_whole_after_all_that(server: Trunkline) -> None:
    assert server.quiet()
    assert server.metrics()["trunkline_kv_blocks_held"] == 0


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096
