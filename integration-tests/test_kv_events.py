"""KV cache events, read over ZeroMQ as vLLM's subscribers do."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq
from harness import Trunkline, free_port, http, serving, wait_for

BLOCK = 64
POD = "pod-7"
PROMPT = [1000 + 7 * position % 4001 for position in range(3 * BLOCK + 9)]
RECEIVE_DEADLINE_MS = 20_000


# The wire format of vllm/distributed/kv_events.py in vLLM 0.23, with strict types, positions and tags.
class EventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(EventBatch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


DECODER = msgspec.msgpack.Decoder(type=KVEventBatch)


class Reader:
    """A SUB socket that checks the topic of each batch and that batch numbers are consecutive."""

    def __init__(self, port: int, topic: str, replay_port: int) -> None:
        self.topic = topic
        self.replay_port = replay_port
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVTIMEO, RECEIVE_DEADLINE_MS)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt_string(zmq.SUBSCRIBE, "kv@")
        self.socket.connect(f"tcp://127.0.0.1:{port}")
        self.last: int | None = None
        self.payloads: dict[int, bytes] = {}

    def receive(self) -> list[BlockStored | BlockRemoved | AllBlocksCleared]:
        topic, number_bytes, payload = self.socket.recv_multipart()
        assert topic.decode() == self.topic
        assert len(number_bytes) == 8
        number = int.from_bytes(number_bytes, "big")
        assert self.last is None or number == self.last + 1, "a batch is missing"
        self.last = number
        batch = DECODER.decode(payload)
        self.payloads[number] = payload
        assert batch.data_parallel_rank == 0
        assert batch.ts > 1.7e9
        return batch.events

    def until(self, wanted: Callable[[Any], bool], num_blocks: int) -> list[Any]:
        """Receives until the wanted events name at least `num_blocks` blocks, and returns these events."""
        events: list[Any] = []
        while sum(len(event.block_hashes) for event in events) < num_blocks:
            events += [event for event in self.receive() if wanted(event)]
        return events


@pytest.fixture(scope="module")
def published() -> Iterator[tuple[Trunkline, Reader]]:
    port = free_port()
    endpoint = f"tcp://*:{port}"
    replay_port = free_port()
    replay = f"tcp://*:{replay_port}"
    flags = ("--kv-events-endpoint", endpoint, "--kv-events-replay-endpoint", replay)
    with serving(*flags, env={"POD_NAME": POD}) as server:
        model = http.get(f"{server.base_url}/v1/models").json()["data"][0]["id"]
        reader = Reader(port, f"kv@{POD}@{model}", replay_port)
        # A subscription takes effect with a delay, and events published before then do not reach this reader.
        reader.socket.setsockopt(zmq.RCVTIMEO, 200)
        for attempt in range(100):
            server.complete([attempt + 3] * (BLOCK + 1), max_tokens=1)
            try:
                reader.receive()
            except zmq.Again:
                continue
            break
        else:
            pytest.fail("the subscription took no effect")
        reader.socket.setsockopt(zmq.RCVTIMEO, RECEIVE_DEADLINE_MS)
        yield server, reader
        reader.socket.close()


def node_of(server: Trunkline, tokens: int) -> dict[str, Any]:
    nodes = http.get(f"{server.base_url}/v1/kv/tree", params={"limit": 1000}).json()["data"]
    (node,) = [node for node in nodes if node["tokens"] == tokens]
    found: dict[str, Any] = node
    return found


def test_blocks_of_a_prompt_are_published_when_stored_and_when_removed(published: tuple[Trunkline, Reader]) -> None:
    server, reader = published
    server.complete(PROMPT, max_tokens=1)
    stored = reader.until(lambda event: isinstance(event, BlockStored) and event.token_ids[0] in PROMPT, 3)
    assert {event.medium for event in stored} == {"GPU"}
    hashes = [block_hash for event in stored for block_hash in event.block_hashes]
    assert [token for event in stored for token in event.token_ids] == PROMPT[: 3 * BLOCK]
    assert len(hashes) == 3
    assert all(event.block_size == BLOCK for event in stored)
    assert stored[0].parent_block_hash is None
    for before, event in itertools.pairwise(stored):
        assert event.parent_block_hash == before.block_hashes[-1]

    node = node_of(server, 3 * BLOCK)
    key = node["id"].partition("-")[2]
    assert hashes[-1] == int(key[:16], 16), "the hash is not the first half of the key"
    assert http.delete(f"{server.base_url}/v1/kv/tree/{node['id']}").status_code == 200
    removed = reader.until(lambda event: isinstance(event, BlockRemoved), 3)
    assert {block_hash for event in removed for block_hash in event.block_hashes} == set(hashes)


def test_missed_batches_are_sent_again(published: tuple[Trunkline, Reader]) -> None:
    server, reader = published
    server.complete([*PROMPT, 4], max_tokens=1)
    # The reader has seen some batches; a late one gets all of them, from the first on.
    late = zmq.Context.instance().socket(zmq.DEALER)
    late.setsockopt(zmq.RCVTIMEO, RECEIVE_DEADLINE_MS)
    late.setsockopt(zmq.LINGER, 0)
    late.connect(f"tcp://127.0.0.1:{reader.replay_port}")
    late.send_multipart([b"", (0).to_bytes(8, "big")])
    payloads: dict[int, bytes] = {}
    while True:
        delimiter, topic, number, payload = late.recv_multipart()
        assert delimiter == b""
        if number == b"\xff" * 8:
            break
        assert topic.decode() == reader.topic
        payloads[int.from_bytes(number, "big")] = payload
    late.close()
    assert list(payloads) == list(range(len(payloads)))
    assert reader.payloads.items() <= payloads.items()
    assert len(reader.payloads) > 2


def test_the_server_connects_to_a_reader_that_listens() -> None:
    socket = zmq.Context.instance().socket(zmq.SUB)
    socket.setsockopt(zmq.RCVTIMEO, 200)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt_string(zmq.SUBSCRIBE, "kv@")
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    with serving("--kv-events-endpoint", f"tcp://127.0.0.1:{port}", env={"POD_NAME": POD}) as server:

        def receive() -> list[bytes]:
            server.complete([next(first) + 3] * (BLOCK + 1), max_tokens=1)
            with contextlib.suppress(zmq.Again):
                return socket.recv_multipart()
            return []

        first = itertools.count()
        topic, _, payload = wait_for(receive, "a batch")
    socket.close()
    assert topic.decode().startswith(f"kv@{POD}@")
    assert DECODER.decode(payload).events
