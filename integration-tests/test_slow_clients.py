"""Connections that send slowly or do not read, and normal service beside them."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import ALL_TIERS, Trunkline, http, serving, wait_for

pytestmark = pytest.mark.alone

NUM_SLOW = 200 if ALL_TIERS else 50
STALL_S = 5 if ALL_TIERS else 2


@pytest.fixture(scope="module")
def stalling() -> Iterator[Trunkline]:
    """Gives up a client that does not read after some seconds instead of half a minute."""
    with serving("--client-stall-timeout", str(STALL_S)) as running:
        yield running


def request_bytes(path: str, body: object) -> bytes:
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


def narrow_connection(server: Trunkline) -> socket.socket:
    """With as little room for what it does not read as the kernel gives."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    return connection


def resident_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = [line for line in status if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def stream_of(tokens: int) -> bytes:
    """Some kilobytes of events for each token."""
    message = {"role": "user", "content": "x"}
    fields = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "logprobs": True, "top_logprobs": 20}
    return request_bytes("/v1/chat/completions", {"messages": [message], **fields})


def nothing_left(server: Trunkline) -> bool:
    return server.quiet() and server.metrics()["trunkline_kv_blocks_held"] == 0


def test_who_never_reads_loses_its_connection_and_its_blocks(stalling: Trunkline) -> None:
    before = stalling.metrics()["trunkline_stalled_connections_total"]
    with narrow_connection(stalling) as connection:
        connection.sendall(stream_of(900))
        wait_for(lambda: not stalling.quiet(), "the request to run")
        wait_for(
            lambda: stalling.metrics()["trunkline_stalled_connections_total"] == before + 1,
            "the connection to be given up",
            120,
        )
        wait_for(lambda: nothing_left(stalling), "all blocks to be free", 60)


def test_slow_connections_leave_normal_service_alone(stalling: Trunkline) -> None:
    whole = request_bytes("/v1/completions", {"prompt": [100, 200, 300], "max_tokens": 2})
    # Headers, bodies, and fewer readers than a step has places for.
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
        # No more than a megabyte for each: tokens, text, sockets.
        assert resident_bytes(router) - before < NUM_SLOW << 20
        # Who sent slowly is served in the end as everybody else is.
        slow[1].sendall(whole[len(kinds[1]) + 10 :])
        assert slow[1].recv(12) == b"HTTP/1.1 200"
    wait_for(lambda: nothing_left(stalling), "all blocks to be free", 120)
