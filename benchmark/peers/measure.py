"""Runs one workload against one started peer, and checks the number of tokens of every answer."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from client import HttpError, Stream

from .metrics import Slo, decode_rate, latencies, percentiles, served
from .peer import HttpEndpoint
from .workload import (
    Arrivals,
    Chat,
    Conversation,
    Decode,
    History,
    Interruption,
    Overhead,
    Prefill,
    Start,
    Vocabulary,
    Workload,
    arrivals,
    conversations,
)

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

        Raises HttpError or Died if the peer fails.
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
        (done,) = endpoint.batch([prompt], workload.output_tokens, workload.limit_s)
        after = endpoint.device_time()
        device_s, steps = after[0] - before[0], after[1] - before[1]
        wall_s = done.e2e_s
        return {
            "device_step_ms": device_s / steps * 1e3,
            "added_step_ms": (wall_s - device_s) / steps * 1e3,
            "added_percent": (wall_s - device_s) / wall_s * 100,
        }

    def interruption(self, endpoint: HttpEndpoint, workload: Interruption) -> Metrics:
        prompts = [self.vocabulary.prompt(32) for _ in range(workload.streams)]
        long_prompt = self.vocabulary.prompt(workload.prompt_tokens)

        async def both() -> Metrics:
            under_way = asyncio.Barrier(workload.streams + 1)
            arrivals_of: list[list[float]] = [[] for _ in prompts]

            async def running(idx: int) -> None:
                started = asyncio.Event()

                def watch(count: int) -> None:
                    arrivals_of[idx].append(time.monotonic())
                    if count == workload.after_tokens:
                        started.set()

                stream = asyncio.create_task(endpoint.complete(prompts[idx], workload.max_output_tokens, watch))
                waiting = asyncio.create_task(started.wait())
                try:
                    await asyncio.wait([stream, waiting], return_when=asyncio.FIRST_COMPLETED)
                    if stream.done():
                        stream.result()
                    await under_way.wait()
                    await stream
                    raise HttpError(f"a stream of {workload.max_output_tokens} tokens ended before the long prompt")
                finally:
                    stream.cancel()
                    waiting.cancel()

            tasks = [asyncio.create_task(running(i)) for i in range(workload.streams)]
            meet = asyncio.create_task(under_way.wait())
            try:
                await first_of([meet], tasks)
                arriving = asyncio.create_task(endpoint.complete(long_prompt, 1))
                await first_of([arriving], tasks)
                return interrupted(arriving.result(), arrivals_of)
            finally:
                for task in (*tasks, meet):
                    task.cancel()
                await asyncio.gather(*tasks, meet, return_exceptions=True)

        return limited(both(), workload.limit_s)

    def arrivals(self, endpoint: HttpEndpoint, workload: Arrivals) -> Metrics:
        requests = arrivals(workload, self.vocabulary, self.seed)
        done: list[Stream] = []

        async def load() -> None:
            begin = time.monotonic()
            clients = asyncio.Semaphore(workload.clients or len(requests))

            async def one(request: Any) -> None:
                await asyncio.sleep(max(begin + request.at_s - time.monotonic(), 0))
                async with clients:
                    done.append(await endpoint.complete(request.prompt, request.output_tokens))

            await asyncio.gather(*(one(r) for r in requests))

        over = cut_off(load(), workload.limit_s)
        return over | (served(done, self.slo) | latencies(done) if done else {})

    def chat(self, endpoint: HttpEndpoint, workload: Chat) -> Metrics:
        turns: list[list[Stream]] = [[] for _ in range(workload.turns)]

        async def talk(conversation: Conversation) -> None:
            messages: list[dict[str, str]] = []
            for number, turn in enumerate(conversation.turns):
                await asyncio.sleep(turn.think_s)
                messages.append({"role": "user", "content": turn.user})
                answer = await endpoint.chat(messages, workload.output_tokens)
                turns[number].append(answer)
                messages.append({"role": "assistant", "content": answer.text})

        async def all_of_them() -> None:
            made = conversations(workload, self.vocabulary, self.seed)
            await asyncio.gather(*(talk(c) for c in made))

        over = cut_off(all_of_them(), workload.limit_s)
        done = [stream for turn in turns for stream in turn]
        if not done:
            return over
        by_turn = [latencies(turn) | {"answers": len(turn)} for turn in turns]
        last_prompt = max(int(s.usage.get("prompt_tokens", 0)) for s in done)
        return over | served(done, self.slo) | latencies(done) | {"last_prompt_tokens": last_prompt, "turns": by_turn}


def must_be_cold(done: Stream) -> None:
    """Raises HttpError if the server reports that part of a new prompt came from its prefix cache."""
    cached = int((done.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
    if cached:
        raise HttpError(f"{cached} tokens of a new prompt came from a cache")


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


async def first_of(wanted: list[asyncio.Task[Any]], failing: list[asyncio.Task[Any]]) -> None:
    """Waits until one of the tasks is done, and raises its exception if it failed."""
    done, _ = await asyncio.wait([*wanted, *failing], return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()


def limited(work: Coroutine[Any, Any, Metrics], limit_s: float) -> Metrics:
    async def run() -> Metrics:
        async with asyncio.timeout(limit_s):
            return await work

    return asyncio.run(run())


def cut_off(work: Coroutine[Any, Any, None], limit_s: float) -> Metrics:
    """Runs a load that keeps its own results. Returns `over_s` if it was cut off at the limit."""

    async def run() -> Metrics:
        try:
            async with asyncio.timeout(limit_s):
                await work
        except TimeoutError:
            return {"over_s": limit_s}
        return {}

    return asyncio.run(run())
