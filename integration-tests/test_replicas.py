"""Two replicas behind one server: streams go on with the other one when a shard is killed or hangs."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from harness import EMBEDDED, START_DEADLINE_S, Trunkline, cached_tokens, http, serving, sse_events, wait_for

# Every stream has more tokens left than it gets until the fault.
COMMON: dict[str, Any] = {"max_tokens": 48, "stream": True, "ignore_eos": True}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
SCHEMA = {"type": "object", "properties": {"story": {"type": "string", "minLength": 160}}, "required": ["story"]}
FORMAT = {"type": "json_schema", "json_schema": {"name": "story", "schema": SCHEMA}}
NUM_TOKENS_BEFORE_FAULT = 6
BLOCK_SIZE = 64


def bodies() -> list[dict[str, Any]]:
    """Eighteen requests: greedy, seeded, several outputs, JSON, tools."""
    made: list[dict[str, Any]] = []
    for number in range(18):
        kinds: list[dict[str, Any]] = [
            {"temperature": 0},
            {"temperature": 0.9, "seed": number},
            {"temperature": 0.8, "seed": number, "n": 2},
            {"temperature": 0, "response_format": FORMAT, "ignore_eos": False, "max_tokens": 120},
            {"temperature": 0, "tools": [TOOL], "tool_choice": "auto"},
            {"temperature": 0.7, "seed": number, "logprobs": True, "top_logprobs": 2},
        ]
        content = f"Tell me story number {number} about a trunk line between two towns."
        made.append(COMMON | {"messages": [{"role": "user", "content": content}]} | kinds[number % len(kinds)])
    return made


@dataclass
class Stream:
    """A stream that is read by a thread of its own: the text of each choice, and the longest pause."""

    server: Trunkline
    body: dict[str, Any]
    path: str = "/v1/chat/completions"
    choices: dict[int, list[Any]] = field(default_factory=dict)
    num_events: int = 0
    longest_pause_s: float = 0.0
    error: Any = None

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        url = f"{self.server.base_url}{self.path}"
        last = time.monotonic()
        with http.stream("POST", url, json=self.body, timeout=300) as answer:
            for event in sse_events(answer.iter_lines()):
                now = time.monotonic()
                if self.num_events > 0:
                    self.longest_pause_s = max(self.longest_pause_s, now - last)
                last = now
                if event == "[DONE]":
                    return
                if "error" in event:
                    self.error = event
                    return
                for choice in event["choices"]:
                    kept = {name: choice.get(name) for name in ("delta", "text", "logprobs", "finish_reason")}
                    self.choices.setdefault(choice["index"], []).append(kept)
                self.num_events += 1
        self.error = "the stream ended without [DONE]"

    def text(self) -> dict[int, str]:
        """The output of each choice, however it was cut into events."""
        joined: dict[int, str] = {}
        for index, events in self.choices.items():
            parts: list[str] = []
            for event in events:
                delta = event["delta"] or {"content": event["text"]}
                parts += [str(delta.get("content") or ""), json.dumps(delta.get("tool_calls") or "")]
                parts += [str(event["finish_reason"] or ""), json.dumps(event["logprobs"] or "")]
            joined[index] = "".join(part for part in parts if part != '""')
        return joined


def run(server: Trunkline, *faults: signal.Signals) -> list[Stream]:
    """Runs all streams at once, and harms one of the shards in the middle of them.

    A shard that is stopped loses its streams to the other one long before a health check finds it unwell.
    """
    streams = [Stream(server, body) for body in bodies()]
    if faults:
        wait_for(lambda: all(stream.num_events >= NUM_TOKENS_BEFORE_FAULT for stream in streams), "streams", 120)
        running = [server.metrics()[f'trunkline_lane_running_sequences{{lane="{lane}"}}'] for lane in (0, 1)]
        # The other one may be done already: other tests can take the time of one lane's cores.
        busiest = running.index(max(running))
        assert running[busiest] > 0, f"all streams have ended: {running}"
        losses, escapes = total(server, "losses"), total(server, "escapes")
        (shard,) = server.pids(f"--lane {busiest}")
        os.kill(shard, faults[0])
        if faults[0] == signal.SIGSTOP:
            wait_for(lambda: total(server, "escapes") > escapes, "escapes", 10)
            assert total(server, "losses") == losses
        for fault in faults[1:]:
            os.kill(shard, fault)
    for stream in streams:
        stream.thread.join()
    return streams


@pytest.fixture(scope="module")
def replicas() -> Iterator[Trunkline]:
    patience = ("--stuck-step-timeout", "1s", "--hung-shard-factor", "1")
    with serving("--replicas", "2", *patience, model=EMBEDDED) as server:
        yield server


def test_long_chats_move_with_their_blocks(tmp_path: Path) -> None:
    """The prompts are so long that computing them again takes seconds."""
    store = ("--kv-disk-path", str(tmp_path / "store"), "--kv-disk-size", "1GiB")
    prompts = [[1000 + 7 * (number + position) % 4001 for position in range(1500)] for number in range(4)]
    bodies = [{"prompt": prompt, "temperature": 0, "seed": 1, **COMMON} for prompt in prompts]
    with serving("--replicas", "2", *store, model=EMBEDDED) as server:
        streams = [Stream(server, body, path="/v1/completions") for body in bodies]
        for stream in streams:
            stream.thread.join()
        expected = [stream.text() for stream in streams]
        moved = server.metrics()["trunkline_moved_blocks_total"]
        losses = total(server, "losses")
        os.kill(server.pids("trunkline_server")[0], signal.SIGKILL)
        wait_for(lambda: total(server, "losses") > losses, "the loss of the shard", 60)
        again = [Stream(server, body, path="/v1/completions") for body in bodies]
        for stream in again:
            stream.thread.join()
        assert [stream.text() for stream in again] == expected
        assert [stream.error for stream in again] == [None] * len(again)
        num_moved = server.metrics()["trunkline_moved_blocks_total"] - moved
        print(f"blocks that moved: {num_moved}; computed: {server.metrics()['trunkline_scheduled_tokens_total']}")
        # At least one of the prompts was computed by the killed shard.
        assert num_moved >= len(prompts[0]) // BLOCK_SIZE - 1


def test_streams_go_on_with_the_other_replica(replicas: Trunkline) -> None:
    assert len(replicas.pids("trunkline_server")) == 2
    expected = [stream.text() for stream in run(replicas)]
    for faults in ((signal.SIGKILL,), (signal.SIGSTOP, signal.SIGCONT), (signal.SIGSTOP,)):
        losses = total(replicas, "losses")
        streams = run(replicas, *faults)
        assert [stream.error for stream in streams] == [None] * len(streams)
        assert [stream.text() for stream in streams] == expected, faults
        assert replicas.is_ready()
        names = " and ".join(fault.name for fault in faults)
        pauses = sorted(stream.longest_pause_s for stream in streams)
        print(f"{names}: longest pauses of the streams, in seconds: {[round(pause, 2) for pause in pauses]}")
        if signal.SIGCONT in faults:
            assert (total(replicas, "losses"), total(replicas, "ready")) == (losses, 2), "the lane keeps its pool"
            continue
        wait_for(lambda before=losses: total(replicas, "losses") > before, "the loss", START_DEADLINE_S)
        wait_for(lambda: total(replicas, "ready") == 2, "the return of the shard", START_DEADLINE_S)
    assert replicas.process.poll() is None


def total(server: Trunkline, name: str) -> float:
    """The sum of a metric over both lanes."""
    metrics = server.metrics()
    suffix = "" if name == "ready" else "_total"
    return sum(metrics[f'trunkline_lane_{name}{suffix}{{lane="{lane}"}}'] for lane in (0, 1))


def test_conversations_return_to_the_replica_that_has_them(replicas: Trunkline) -> None:
    histories = [[1000 + 7 * (number + position) % 4001 for position in range(200)] for number in range(4)]
    for history in histories:
        assert cached_tokens(replicas.complete(history, max_tokens=1)) == 0
    for history in reversed(histories):
        assert cached_tokens(replicas.complete(history, max_tokens=1)) >= 192
