"""Checks that a reply has the same bytes whatever else the server does, through launcher, router and shard.

Requests of many kinds are recorded one at a time. They are then repeated from the prefix cache, among random other
requests that share prefixes or disconnect, after the shard is killed, and on servers with other chunk sizes. Texts,
tokens, logprobs and finish reasons must be the same JSON.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpu.lines import Lines
from gpu.requests import prompt, serving

TIMEOUT_S = 240.0
RETRY_S = 0.1
# The share of the other threads that must await an answer to count as busy.
BUSY_SHARE = 0.75
# Error codes of requests that fail because of a killed shard.
SHARD_CODES = ("shard_lost", "shard_away", "shard_silent", "shard_stuck")
VARIANTS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.2, "top_p": 0.9, "seed": 2**40},
    {"temperature": 1.0, "top_k": 20, "min_p": 0.01, "seed": 5},
    {"temperature": 0, "presence_penalty": 0.7, "frequency_penalty": 0.3},
    {"temperature": 0.7, "repetition_penalty": 1.2, "seed": 8},
    {"temperature": 0, "logit_bias": {"5": 4.0, "9": -4.0}},
    {"temperature": 1.0, "top_p": 0.5, "seed": 13, "n": 2},
)


@dataclass(frozen=True)
class Size:
    """The amount of traffic.

    `lengths` are those of the recorded prompts, `others` is the number of threads that send other requests, `turns` the
    number of repetitions among these, and `chunk_tokens` the largest chunk of each server in turn.
    """

    lengths: Sequence[int]
    num_output: int
    others: int
    other_length: int
    other_output: int
    chunk_tokens: Sequence[int]
    turns: int = 1
    arguments: Sequence[str] = ()


LARGE = Size(
    lengths=(1, 17, 63, 64, 65, 130, 300, 511, 700, 1500), num_output=48, others=32, other_length=900, other_output=80,
    chunk_tokens=(4096, 192, 1000), turns=3, arguments=("--max-batch-total-tokens", "200000"),
)  # fmt: skip
TINY = Size(
    lengths=(1, 20, 70), num_output=3, others=3, other_length=40, other_output=4, chunk_tokens=(64, 24),
    arguments=("--max-batch-total-tokens", "2048", "--max-step-sequences", "8"),
)  # fmt: skip
# For Triton's interpreter, which takes half a second for a step.
LEAST = replace(TINY, lengths=(20, 70), num_output=2, others=2, chunk_tokens=(64,))
SIZES = {"large": LARGE, "tiny": TINY, "least": LEAST}
# Formats of K and V that are also checked on servers with other chunk sizes.
CHUNKED_DTYPES = ("auto", "int8")


class ShardLost(Exception):
    """The shard died before or while it worked on the request."""


def recorded(size: Size, vocab_size: int) -> dict[str, dict[str, Any]]:
    """Returns the bodies of requests, by name, whose every reply must equal that of the request sent alone."""
    found = {}
    for number, length in enumerate(size.lengths):
        variant = VARIANTS[number % len(VARIANTS)]
        found[f"{length} tokens, {json.dumps(variant)}"] = {
            "model": "bench", "prompt": prompt(7000 + number, length, vocab_size), "max_tokens": size.num_output,
            "logprobs": 3, "ignore_eos": True, **variant,
        }  # fmt: skip
    return found


def ask(port: int, body: dict[str, Any]) -> str:
    """Returns a reply's choices as JSON with sorted keys. Raises ShardLost or RuntimeError for an error."""
    with _answer(port, body) as response:
        return json.dumps(json.loads(response.read())["choices"], sort_keys=True)


def ask_until_there(port: int, body: dict[str, Any], deadline_s: float = TIMEOUT_S) -> str:
    """Calls `ask` again until the shard is there."""
    ends = time.monotonic() + deadline_s
    while True:
        try:
            return ask(port, body)
        except ShardLost:
            if time.monotonic() > ends:
                raise
            time.sleep(RETRY_S)


def ask_and_leave(port: int, body: dict[str, Any], num_events: int) -> None:
    """Streams a reply and closes the connection after `num_events` events."""
    with _answer(port, {**body, "stream": True}) as response:
        for _ in range(num_events):
            if not response.readline():
                return


@contextlib.contextmanager
def _answer(port: int, body: dict[str, Any]) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)) as connection:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status == 200:
            yield response
            return
        text = response.read().decode()
    if any(code in text for code in SHARD_CODES):
        raise ShardLost(text)
    raise RuntimeError(f"the server answered {response.status}: {text[:300]}")


class Others:
    """Threads that send random requests, each from its own seed, until they are stopped."""

    def __init__(self, port: int, size: Size, vocab_size: int, beginnings: Sequence[list[int]], seed: int) -> None:
        self._port, self._size, self._vocab_size, self._beginnings = port, size, vocab_size, beginnings
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._num_asking = 0
        self.counts = {"whole": 0, "left": 0, "lost": 0}
        self.errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(1000 * seed + number),), daemon=True)
            for number in range(size.others)
        ]

    def __enter__(self) -> Others:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def wait_until_busy(self, deadline_s: float = TIMEOUT_S) -> bool:
        """Waits until one request has been answered in full and most threads await an answer, or until one fails.

        Returns True if they are busy.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._is_busy() or self.errors, deadline_s)
            return self._is_busy()

    def problems(self, *, is_shard_killed: bool = False) -> list[str]:
        """Returns unexpected failures. Requests may be lost only if the shard was killed."""
        found = list(self.errors)
        if self.counts["lost"] and not is_shard_killed:
            found.append(f"{self.counts['lost']} lost")
        if not self.counts["whole"]:
            found.append("none was answered whole")
        return found

    def _run(self, chance: random.Random) -> None:
        while not self._stop.is_set():
            body = self._body(chance)
            leaves = chance.random() < 0.25
            self._begin()
            try:
                if leaves:
                    ask_and_leave(self._port, body, chance.randrange(0, 8))
                else:
                    ask(self._port, body)
                self._end("left" if leaves else "whole")
            except (ShardLost, ConnectionError, http.client.HTTPException):
                self._end("lost")
                self._stop.wait(RETRY_S)
            except (OSError, RuntimeError) as error:
                self._end(None, str(error))
                return

    def _body(self, chance: random.Random) -> dict[str, Any]:
        length = chance.randint(1, self._size.other_length)
        tokens = prompt(chance.getrandbits(32), length, self._vocab_size)
        if chance.random() < 0.4:
            beginning = chance.choice(self._beginnings)
            tokens = beginning[: chance.randint(1, len(beginning))] + tokens[: length // 4 + 1]
        return {
            "model": "bench", "prompt": tokens, "max_tokens": chance.randint(1, self._size.other_output),
            "ignore_eos": True, **chance.choice(VARIANTS), "n": 1,
        }  # fmt: skip

    def _begin(self) -> None:
        with self._changed:
            self._num_asking += 1
            self._changed.notify_all()

    def _end(self, what: str | None, error: str = "") -> None:
        """Counts the end of a request under `what`, or records the error that ends its thread."""
        with self._changed:
            self._num_asking -= 1
            if what is None:
                self.errors.append(error)
            else:
                self.counts[what] += 1
            self._changed.notify_all()

    def _is_busy(self) -> bool:
        return self.counts["whole"] > 0 and self._num_asking >= BUSY_SHARE * len(self._threads)


class Comparison:
    """Compares replies with those that the requests had when sent alone."""

    def __init__(self, lines: Lines, setting: str, requests: Mapping[str, dict[str, Any]]) -> None:
        self._lines, self._setting, self._requests = lines, setting, requests
        self._alone: dict[str, str] = {}

    def record(self, port: int) -> None:
        """Sends each request alone and records its reply."""
        began = time.monotonic()
        self._alone = {name: ask(port, body) for name, body in self._requests.items()}
        total = sum(len(text) for text in self._alone.values())
        detail = f"{len(self._alone)} requests in {time.monotonic() - began:.1f} s, {total} bytes"
        self._lines.check(f"traffic: {self._setting}: recorded alone", holds=total > 0, detail=detail)

    def check(self, port: int, what: str, *, at_once: int, patient: bool = False) -> None:
        """Sends all requests again in another order, `at_once` at a time, and reports whether the replies are equal."""
        order = list(self._requests)
        random.Random(what).shuffle(order)
        one = ask_until_there if patient else ask
        try:
            with ThreadPoolExecutor(at_once) as pool:
                found = list(pool.map(lambda name: one(port, self._requests[name]), order))
        except (OSError, RuntimeError, ShardLost, http.client.HTTPException) as error:
            self.say(what, [f"{type(error).__name__}: {error}"])
            return
        differing = [
            _difference(name, self._alone[name], reply)
            for name, reply in zip(order, found, strict=True)
            if reply != self._alone[name]
        ]
        self.say(what, differing)

    def say(self, what: str, problems: Sequence[str], detail: str = "") -> None:
        text = "; ".join([*problems, detail] if detail else problems)
        self._lines.check(f"traffic: {self._setting}: {what}", holds=not problems, detail=text[:1500])


def _difference(name: str, alone: str, reply: str) -> str:
    place = next((n for n, (a, b) in enumerate(zip(alone, reply, strict=False)) if a != b), min(len(alone), len(reply)))
    begin = max(0, place - 40)
    return f"{name}: `{alone[begin : place + 40]}` alone, `{reply[begin : place + 40]}` here"


def kill_shard(launcher: int) -> bool:
    """Kills the shard of a launcher and returns whether there was one."""
    found = False
    for entry in Path("/proc").glob("[0-9]*"):
        # A process may end meanwhile.
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == launcher and "trunkline_server" in (entry / "cmdline").read_text().split("\0"):
                os.kill(int(entry.name), signal.SIGKILL)
                found = True
    return found


def left_behind(port: int, deadline_s: float = 20.0) -> list[str]:
    """Returns gauges that are not zero although there are no requests."""
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "trunkline_kv_blocks_held")
    ends = time.monotonic() + deadline_s
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        samples = [line for line in text.splitlines() if line.startswith(names)]
        held = [line for line in samples if float(line.rsplit(" ", 1)[1]) != 0]
        if samples and not held:
            return []
        if time.monotonic() > ends:
            return held or ["no gauges were found"]
        time.sleep(RETRY_S)


def check(model: Path, vocab_size: int, launcher: Path, kv_cache_dtype: str, size: Size, lines: Lines) -> None:
    requests = recorded(size, vocab_size)
    beginnings = [body["prompt"] for body in requests.values()]
    comparison = Comparison(lines, f"K and V {kv_cache_dtype}", requests)
    arguments = ["--backend", "cuda", "--kv-cache-dtype", kv_cache_dtype, *size.arguments]
    first, *others_tokens = size.chunk_tokens
    with serving(launcher, model, [*arguments, "--max-batch-prefill-tokens", str(first)]) as server:
        _first_server(server, comparison, size, vocab_size, beginnings)
    for tokens in others_tokens if kv_cache_dtype in CHUNKED_DTYPES else ():
        with serving(launcher, model, [*arguments, "--max-batch-prefill-tokens", str(tokens)]) as server:
            comparison.check(server.port, f"chunks of {tokens}, one at a time", at_once=1)
            with Others(server.port, size, vocab_size, beginnings, tokens) as others:
                comparison.check(server.port, f"chunks of {tokens}, among others", at_once=4)
                others.wait_until_busy()
            comparison.say(f"chunks of {tokens}: others were answered", others.problems(), str(others.counts))


def _first_server(
    server: Any, comparison: Comparison, size: Size, vocab_size: int, beginnings: Sequence[list[int]]
) -> None:
    port = server.port
    comparison.record(port)
    comparison.check(port, "from the prefix cache", at_once=1)
    comparison.check(port, "all at once", at_once=len(size.lengths))
    with Others(port, size, vocab_size, beginnings, 1) as others:
        for turn in range(size.turns):
            comparison.check(port, f"among {size.others} others, turn {turn + 1}", at_once=4)
        others.wait_until_busy()
    comparison.say("others were answered", others.problems(), str(others.counts))
    with Others(port, size, vocab_size, beginnings, 2) as others:
        # The shard must be working on their requests when it is killed.
        is_busy = others.wait_until_busy()
        killed = kill_shard(server.process.pid)
        comparison.check(port, "after the shard was killed, among others", at_once=4, patient=True)
    problems = others.problems(is_shard_killed=True)
    problems += [] if killed else ["there was no shard"]
    problems += [] if is_busy else ["the others were not busy"]
    comparison.say("a shard was killed", problems, str(others.counts))
    comparison.check(port, "after the shard was killed, one at a time", at_once=1, patient=True)
    comparison.say("nothing is held without requests", left_behind(port))
