"""Connections that send slowly or do not read leave normal service intact."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
from harness import ALL_TIERS, Trunkline, http, resident_bytes, serving, wait_for

pytestmark = pytest.mark.alone

NUM_SLOW = 200 if ALL_TIERS else 50
STALL_S = 5 if ALL_TIERS else 2


@pytest.fixture(scope="module")
def stalling() -> Iterator[Trunkline]:
    """A server that closes the connection of a client that does not read after a few seconds."""
    with serving("--client-stall-timeout", str(STALL_S)) as running:
        yield running


def request_bytes(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def narrow_connection(server: Trunkline) -> socket.socket:
    """Connects with the smallest receive buffer that the kernel allows."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    return connection


def stream_of(tokens: int) -> bytes:
    """Returns a request whose stream has some kilobytes of events per token."""
    message = {"role": "user", "content": "x"}
    fields = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "logprobs": True, "top_logprobs": 20}
    return request_bytes("/v1/chat/completions", {"messages": [message], **fields})


def test_client_that_never_reads_loses_its_connection_and_its_blocks(stalling: Trunkline) -> None:
    before = stalling.metrics()["trunkline_stalled_connections_total"]
    with narrow_connection(stalling) as connection:
        connection.sendall(stream_of(900))
        wait_for(lambda: not stalling.is_idle(), "the request to run")
        wait_for(
            lambda: stalling.metrics()["trunkline_stalled_connections_total"] == before + 1,
            "the connection to be closed",
            120,
        )
        wait_for(lambda: stalling.holds_nothing(), "all blocks to be free", 60)


def test_slow_connections_leave_normal_service_alone(stalling: Trunkline) -> None:
    whole = request_bytes("/v1/completions", {"prompt": [100, 200, 300], "max_tokens": 2})
    # Partial headers, partial bodies, and fewer streams than a step can run.
    kinds = [whole[:20], whole[:-20], whole[:20], whole[:-20], stream_of(200)]
    router = stalling.router_pid()
    stalling.complete("warm", max_tokens=2)
    before = resident_bytes(router)
    with contextlib.ExitStack() as open_connections:
        slow = []
        for number in range(NUM_SLOW):
            connection = open_connections.enter_context(narrow_connection(stalling))
            connection.sendall(kinds[number % 5])
            slow.append(connection)
        for round_ in range(10):
            for number, connection in enumerate(slow):
                if number % 5 < 4:
                    sent = len(kinds[number % 5]) + round_
                    connection.sendall(whole[sent : sent + 1])
            assert stalling.complete("The sea is", max_tokens=3)["usage"]["completion_tokens"] == 3
            assert http.get(f"{stalling.base_url}/readyz").status_code == 200
        # At most 1 MiB per connection for tokens, text and sockets.
        assert resident_bytes(router) - before < NUM_SLOW << 20
        # A slow sender is served once its request is complete.
        slow[1].sendall(whole[len(kinds[1]) + 10 :])
        assert slow[1].recv(12) == b"HTTP/1.1 200"
    wait_for(lambda: stalling.holds_nothing(), "all blocks to be free", 120)
