"""Runs one workload against one started peer, and checks the number of tokens of every answer."""

from __future__ import annotations

import itertools
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

from load import Load, LoadError, Stream, streams

from .metrics import Slo, decode_rate, latencies, percentiles, served
from .peer import HttpEndpoint, raise_failures
from .workload import (
    Arrivals,
    Chat,
    Decode,
    History,
    Interruption,
    Overhead,
    Prefill,
    Prompt,
    Start,
    Vocabulary,
    Workload,
    arrivals,
)

# A long prompt arrives among streams after this multiple of the time that they need for their first tokens.
PAUSE_FACTOR = 1.25
Metrics = dict[str, Any]


@dataclass
class Measurer:
    """Measures workloads. `seed` differs between rounds and is the same for all peers of a round."""

    words: list[tuple[int, str]]
    slo: Slo
    seed: int
    vocabulary: Vocabulary = field(init=False)

    def __post_init__(self) -> None:
        self.vocabulary = Vocabulary(self.words, self.seed)

    def measure(self, endpoint: HttpEndpoint, workload: Workload) -> Metrics:
        """Returns the metrics of one measurement. If it was cut off, they have `over_s` and what was done until then.

        Raises LoadError or Died if the peer fails.
        """
        self.vocabulary = Vocabulary(self.words, f"{workload.name}/{self.seed}")
        try:
            # The method of a workload has the name of its class.
            measured: Metrics = getattr(self, type(workload).__name__.lower())(endpoint, workload)
            return measured
        except TimeoutError:
            return {"over_s": workload.limit_s}

    def start(self, endpoint: HttpEndpoint, workload: Start) -> Metrics:
        before, begin = endpoint.child.cpu_s(), time.monotonic()
        time.sleep(workload.idle_s)
        spent = endpoint.child.cpu_s() - before
        return {
            "start_s": endpoint.start_s,
            "idle_cpu_percent": spent / (time.monotonic() - begin) * 100,
            "memory_mb": endpoint.child.memory_bytes() / 1e6,
        }

    def decode(self, endpoint: HttpEndpoint, workload: Decode) -> Metrics:
        prompts = [self.vocabulary.prompt(workload.prompt_tokens) for _ in range(workload.streams)]
        return decode_rate(endpoint.batch(prompts, workload.output_tokens, workload.limit_s))

    def prefill(self, endpoint: HttpEndpoint, workload: Prefill) -> Metrics:
        prompt = self.vocabulary.prompt(workload.prompt_tokens)
        (done,) = endpoint.batch([prompt], 1, workload.limit_s)
        must_be_cold(done)
        return {"tokens_per_s": workload.prompt_tokens / done.ttft_s, "ttft_ms": done.ttft_s * 1e3}

    def history(self, endpoint: HttpEndpoint, workload: History) -> Metrics:
        prompt = self.vocabulary.prompt(workload.prompt_tokens)
        more = self.vocabulary.prompt(workload.more_tokens)
        longer = type(prompt)(prompt.ids + more.ids, prompt.text + more.text)
        (cold,) = endpoint.batch([prompt], workload.output_tokens, workload.limit_s)
        must_be_cold(cold)
        (warm,) = endpoint.batch([longer], workload.output_tokens, workload.limit_s)
        return {"cold_ttft_ms": cold.ttft_s * 1e3, "warm_ttft_ms": warm.ttft_s * 1e3}

    def overhead(self, endpoint: HttpEndpoint, workload: Overhead) -> Metrics:
        prompt = self.vocabulary.prompt(1)
        before = endpoint.device_time()
        wall_s = endpoint.timed(prompt, workload.output_tokens, workload.limit_s)
        after = endpoint.device_time()
        device_s, steps = after[0] - before[0], after[1] - before[1]
        return {
            "device_step_ms": device_s / steps * 1e3,
            "added_step_ms": (wall_s - device_s) / steps * 1e3,
            "added_percent": (wall_s - device_s) / wall_s * 100,
        }

    def interruption(self, endpoint: HttpEndpoint, workload: Interruption) -> Metrics:
        def prompts() -> list[Prompt]:
            return [self.vocabulary.prompt(32) for _ in range(workload.streams)]

        ends = time.monotonic() + workload.limit_s

        def load(lines: list[dict[str, Any]]) -> Load:
            number, left_s = str(len(lines)), max(ends - time.monotonic(), 0.1)
            flags = ("--concurrency", number, "--requests", number, "--timeout", str(left_s))
            return endpoint.load(*flags, prompts=lines)

        # Tells when the streams are under way.
        done = endpoint.batch(prompts(), workload.after_tokens, workload.limit_s)
        pause = {"pause_s": PAUSE_FACTOR * max(stream.e2e_s for stream in done)}
        running = load([endpoint.line(prompt, workload.max_output_tokens) for prompt in prompts()])
        try:
            long = load([endpoint.line(self.vocabulary.prompt(workload.prompt_tokens), 1) | pause])
            (arriving,) = long.wait()
        finally:
            (beside,) = running.interrupt()
        raise_failures(arriving)
        raise_failures(beside)
        (arrived,) = streams(arriving)
        beside_it = streams(beside)
        if any(stream.num_tokens and stream.events[-1] < arrived.events[0] for stream in beside_it):
            raise LoadError(f"a stream of {workload.max_output_tokens} tokens ended before the long prompt")
        return interrupted(arrived, [stream.events for stream in beside_it if stream.events])

    def arrivals(self, endpoint: HttpEndpoint, workload: Arrivals) -> Metrics:
        lines = [endpoint.line(*request) for request in arrivals(workload, self.vocabulary, self.seed)]
        shape = (
            ("--rate", str(workload.rate_per_s)) if workload.rate_per_s else ("--concurrency", str(workload.clients))
        )
        load, over = cut_off(endpoint.load(*shape, *self.size(len(lines)), prompts=lines), workload.limit_s)
        done = [stream for stream in streams(load) if stream.num_tokens]
        return over | (served(done, self.slo) | latencies(done) if done else {})

    def chat(self, endpoint: HttpEndpoint, workload: Chat) -> Metrics:
        lengths = ("--input-tokens", str(workload.user_tokens), "--output-tokens", str(workload.output_tokens))
        turns = ("--turns", str(workload.turns), "--pause", str(workload.think_s), "--endpoint", "chat")
        size = self.size(workload.conversations * workload.turns)
        clients = ("--concurrency", str(workload.conversations))
        begun = endpoint.load(*lengths, *turns, *size, *clients, max_tokens=workload.output_tokens)
        load, over = cut_off(begun, workload.limit_s)
        done = [endpoint.checked(stream, workload.output_tokens) for stream in streams(load) if stream.num_tokens]
        if not done:
            return over
        of_turn = [[stream for stream in done if stream.turn == number] for number in range(workload.turns)]
        by_turn = [latencies(turn) | {"answers": len(turn)} for turn in of_turn]
        last_prompt = max(stream.prompt_tokens for stream in done)
        return over | served(done, self.slo) | latencies(done) | {"last_prompt_tokens": last_prompt, "turns": by_turn}

    def size(self, num_requests: int) -> tuple[str, ...]:
        return ("--requests", str(num_requests), "--seed", str(self.seed))


def must_be_cold(done: Stream) -> None:
    """Raises LoadError if the server reports that part of a new prompt came from its prefix cache."""
    if done.cached_tokens:
        raise LoadError(f"{done.cached_tokens} tokens of a new prompt came from a cache")


def interrupted(arrived: Stream, arrivals_of: list[list[float]]) -> Metrics:
    """Returns metrics of the running streams' gaps before the long prompt and until its first token."""
    during, before = [], []
    for events in arrivals_of:
        for a, b in itertools.pairwise(events):
            if b <= arrived.sent:
                before.append(b - a)
            elif a < arrived.events[0]:
                during.append(b - a)
        if events[-1] < arrived.events[0]:
            # This stream was still waiting when the long prompt's first token arrived.
            during.append(arrived.events[0] - events[-1])
    return {
        "worst_gap_ms": max(during) * 1e3,
        "long_ttft_ms": arrived.ttft_s * 1e3,
        **percentiles("itl_before", before),
        **percentiles("itl_during", during),
    }


def cut_off(load: Load, limit_s: float) -> tuple[dict[str, Any], Metrics]:
    """Returns what a load has measured, and `over_s` if it was cut off at the limit. Raises LoadError for a failure."""
    over: Metrics = {}
    try:
        (measured,) = load.wait(limit_s)
    except subprocess.TimeoutExpired:
        (measured,) = load.interrupt()
        over = {"over_s": limit_s}
    raise_failures(measured)
    return measured, over
