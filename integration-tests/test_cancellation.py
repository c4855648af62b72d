"""A client that disconnects, at any moment, or sends garbage leaves no sequence and no block behind."""

from __future__ import annotations

import json
import random
import socket

import pytest
from harness import Trunkline, wait_for

MAX_TOKENS = 2000
# Prompt lengths, long enough for `prefill` that the client can disconnect before the prompt is computed.
PROMPT_TOKENS = {"prefill": 1500, "decode": 100}


def request_bytes(prompt: list[int], *, stream: bool) -> bytes:
    body = json.dumps(
        {"prompt": prompt, "max_tokens": MAX_TOKENS, "ignore_eos": True, "stream": stream, "temperature": 0}
    ).encode()
    lines = [
        "POST /v1/completions HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(body)}",
    ]
    head = "\r\n".join([*lines, "", ""])
    return head.encode() + body


class Counts:
    """The growth of a server's counters since this object was created."""

    def __init__(self, server: Trunkline) -> None:
        self._server = server
        self._before = server.metrics()

    def since(self, name: str) -> float:
        return self._server.metrics()[f"trunkline_{name}_total"] - self._before[f"trunkline_{name}_total"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("moment", ["prefill", "decode"])
def test_disconnect_aborts_the_request(server: Trunkline, stream: bool, moment: str) -> None:
    prompt = random.Random(f"{moment} {stream}").choices(range(100, 40_000), k=PROMPT_TOKENS[moment])
    wait_for(lambda: server.holds_nothing(), "the requests of other tests to end")
    counts = Counts(server)
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request_bytes(prompt, stream=stream))
        if moment == "prefill":
            wait_for(lambda: server.metrics()["trunkline_running_sequences"] == 1, "the request to run")
        else:
            wait_for(lambda: counts.since("output_tokens") > 0, "the first token")
    wait_for(lambda: counts.since("aborts") == 1, "the abort")
    wait_for(lambda: server.holds_nothing(), "all blocks to be free")
    assert counts.since("output_tokens") < MAX_TOKENS // 2, "the request continued without its client"


def test_garbage_on_the_socket_leaves_the_server_serving(server: Trunkline) -> None:
    for garbage in (b"\0" * 4096, b"GET / HTTP/9.9\r\n\r\n", b"POST /generate HTTP/1.1\r\ncontent-length: -5\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(garbage)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass
    assert server.complete("hello", max_tokens=2)["choices"][0]["text"]
