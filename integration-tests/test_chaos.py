"""Load over all dialects while the shard is killed and stopped, and while hostile clients call.

Every answer must equal that of a quiet server. `make chaos SECONDS=600 SEED=7` runs it for longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness import START_DEADLINE_S, Trunkline, descendants, http, resident_bytes, serving, sse_events, wait_for

SECONDS = float(os.environ.get("TRUNKLINE_CHAOS_SECONDS", "12"))
SEED = int(os.environ.get("TRUNKLINE_CHAOS_SEED", "1"))
NUM_CLIENTS = 12
NUM_HOSTILE = 4
# The launcher gives up after five restarts a minute.
LEAST_PAUSE_S = 15.0
# Fields that differ from answer to answer. Usage does, because it counts cached tokens.
OWN_FIELDS = ("id", "item_id", "response_id", "created", "created_at", "completed_at", "usage")

CHAT, COMPLETIONS, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
GRAMMAR = {"type": "json", "value": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 30}}}}


def chat(topic: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "You are brief."}, {"role": "user", "content": f"Tell me about {topic}."}]


def sampled(seed: int, **fields: Any) -> dict[str, Any]:
    return {"seed": seed, "temperature": 0.9, "top_p": 0.95, "max_tokens": 32} | fields


# A request of each kind. None depends on another.
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, sampled(1, messages=chat("rivers"), stream=True)),
    (CHAT, sampled(2, messages=chat("rivers"), n=2, logprobs=True, top_logprobs=2)),
    (CHAT, sampled(3, messages=chat("trains"), n=2, logprobs=True, stream=True)),
    (CHAT, sampled(4, messages=chat("tea"), response_format={"type": "json_object"})),
    (COMPLETIONS, sampled(5, prompt="One, two, three,", logprobs=1, echo=True)),
    (COMPLETIONS, sampled(6, prompt=["Up and", "Down and"], stream=True)),
    (RESPONSES, {"input": "Name a colour.", "max_output_tokens": 32, "temperature": 0, "store": False}),
    (RESPONSES, {"input": "Name a tree.", "max_output_tokens": 32, "temperature": 0, "store": False, "stream": True}),
    (ANTHROPIC, {"messages": chat("snow")[1:], "temperature": 0, "max_tokens": 32, "stream": True}),
    ("/generate", {"inputs": "Once", "parameters": {"seed": 9, "max_new_tokens": 32, "do_sample": True}}),
    ("/generate_stream", {"inputs": "A name:", "parameters": {"seed": 9, "max_new_tokens": 24, "grammar": GRAMMAR}}),
]


def without_own(answer: Any) -> Any:
    """Returns an answer without its ids, times and usage."""
    if isinstance(answer, dict):
        return {name: without_own(value) for name, value in answer.items() if name not in OWN_FIELDS}
    return [without_own(value) for value in answer] if isinstance(answer, list) else answer


def folded(path: str, events: Iterator[Any]) -> Any:
    """Returns the content of a stream's events, which does not depend on how the text was cut into events."""
    texts: dict[int, str] = defaultdict(str)
    rest: dict[int, list[Any]] = defaultdict(list)
    for event in events:
        assert event == "[DONE]" or "error" not in event, event
        if event == "[DONE]":
            rest[0].append(event)
        elif path == RESPONSES:
            if event["type"] == "response.completed":
                rest[0].append(without_own(event["response"]))
        elif path == ANTHROPIC:
            texts[0] += event.get("delta", {}).get("text", "")
            rest[0].append(event.get("delta", {}).get("stop_reason"))
        elif path == "/generate_stream":
            rest[0].append([event["token"]["id"], event["token"]["logprob"], event["generated_text"]])
        else:
            for choice in event["choices"]:
                index = choice["index"]
                texts[index] += choice.get("text") or choice.get("delta", {}).get("content") or ""
                rest[index].extend((choice["logprobs"] or {}).get("content") or [])
                rest[index].extend([choice["finish_reason"]] if choice["finish_reason"] else [])
    if path == ANTHROPIC:
        rest[0] = [reason for reason in rest[0] if reason]
    return dict(texts), dict(rest)


def ask(server: Trunkline, path: str, body: dict[str, Any]) -> Any:
    """Returns an answer's content, and fails if it is an error."""
    url = server.base_url + path
    if body.get("stream") or path == "/generate_stream":
        with http.stream("POST", url, json=body, timeout=300) as stream:
            assert stream.status_code == 200, stream.read()
            return folded(path, sse_events(stream.iter_lines()))
    answer = http.post(url, json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return without_own(answer.json())


class Chaos:
    """Clients and faults around one server. Each thread draws from a generator of its own."""

    def __init__(self, server: Trunkline, expected: list[Any]) -> None:
        self.server, self.expected = server, expected
        self.over = threading.Event()
        self.num_answers = 0
        # Seconds from each kill until the server was ready again.
        self.outages_s: list[float] = []

    def client(self, number: int) -> None:
        """Sends requests one after the other and compares each answer with the quiet server's."""
        draw = random.Random(f"{SEED} client {number}")
        while not self.over.is_set():
            index = draw.randrange(len(REQUESTS))
            path, body = REQUESTS[index]
            assert ask(self.server, path, body) == self.expected[index], f"{path} {body}"
            self.num_answers += 1

    def hostile(self, number: int) -> None:
        """Leaves streams early, reads nothing, sends half a request, or sends values at the edges of their types."""
        draw = random.Random(f"{SEED} hostile {number}")
        address = ("127.0.0.1", int(self.server.base_url.rsplit(":", 1)[1]))
        while not self.over.is_set():
            path, body = REQUESTS[draw.randrange(len(REQUESTS))]
            body = body | {"max_tokens": 500} if path == CHAT else body
            data = json.dumps(body).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            kind = draw.choice(["leave", "half", "edge"])
            if kind == "edge":
                field = draw.choice(["temperature", "top_p", "typical_p", "min_p", "repetition_penalty", "max_tokens"])
                value = draw.choice(["1e-40", "1e-320", "-0.0", "2147483648", "18446744073709551616", "1e308", "1e309"])
                # Python would write these numbers in another way.
                text = f'{{"prompt": "x", "seed": 1, "{field}": {value}}}'
                answer = http.post(self.server.base_url + COMPLETIONS, content=text, timeout=300)
                assert answer.status_code < 500, f"{text}: {answer.text}"
                continue
            with contextlib.suppress(OSError), socket.create_connection(address, timeout=60) as connection:
                connection.sendall(head + (data if kind == "leave" else data[: len(data) // 2]))
                if kind == "leave":
                    connection.recv(draw.choice([1, 64, 4096]))

    def faults(self) -> None:
        """Kills or stops the shard again and again, and lets the server recover."""
        draw = random.Random(f"{SEED} faults")
        begin = time.monotonic()
        self.over.wait(draw.uniform(1, 3))
        while time.monotonic() - begin < SECONDS or not self.outages_s:
            shard = self.server.shard_pid()
            if self.outages_s and draw.random() < 0.3:
                os.kill(shard, signal.SIGSTOP)
                self.over.wait(draw.uniform(0.1, 2))
                os.kill(shard, signal.SIGCONT)
            else:
                os.kill(shard, signal.SIGKILL)
                killed = time.monotonic()
                wait_for(lambda old=shard: self.server.shard_pid() != old, "another shard", START_DEADLINE_S)
                wait_for(self.server.is_ready, "readiness after a kill", START_DEADLINE_S)
                self.outages_s.append(time.monotonic() - killed)
            left = SECONDS - (time.monotonic() - begin)
            self.over.wait(max(0.0, min(left, LEAST_PAUSE_S + draw.uniform(0, 5))))
        self.over.set()


@pytest.mark.alone
def test_every_answer_equals_that_of_a_quiet_server() -> None:
    with serving("--client-stall-timeout", "5") as server:
        expected = [ask(server, path, body) for path, body in REQUESTS]
        wait_for(server.holds_nothing, "the end of the quiet requests")
        router = server.router_pid()
        before = resident_bytes(router)
        chaos = Chaos(server, expected)
        with ThreadPoolExecutor(NUM_CLIENTS + NUM_HOSTILE + 1) as pool:
            tasks = [pool.submit(chaos.client, number) for number in range(NUM_CLIENTS)]
            tasks += [pool.submit(chaos.hostile, number) for number in range(NUM_HOSTILE)]
            tasks.append(pool.submit(chaos.faults))
            for task in tasks:
                task.add_done_callback(lambda done: chaos.over.set() if done.exception() else None)
        for task in tasks:
            task.result()
        median, worst = statistics.median(chaos.outages_s), max(chaos.outages_s)
        print(f"{chaos.num_answers} answers, {len(chaos.outages_s)} kills; ready again after {median:.2f} s")
        print(f"at worst after {worst:.2f} s")
        assert chaos.num_answers >= NUM_CLIENTS
        wait_for(server.holds_nothing, "all gauges to be 0")
        metrics = server.metrics()
        assert metrics["trunkline_sequences_replayed_total"] > 0, "no kill met a running request"
        assert metrics["trunkline_sequences_convicted_total"] == 0
        assert metrics["trunkline_unexpected_results_total"] == 0
        assert server.router_pid() == router, "the router never ended"
        assert len(descendants(server.process.pid)) == 2, server.pids_commands()
        grown = resident_bytes(router) - before
        assert grown < 64 << 20, f"the router grew by {grown} bytes"
