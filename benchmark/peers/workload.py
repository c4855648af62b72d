"""The workloads, as data, with the same prompts for every peer from one seed.

A prompt consists of words that are one token each, so that its text and its token ids are equivalent for every
tokenizer of the model. No two prompts share a prefix unless a workload says so.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

CONTEXT_TOKENS = 8192
# Capacity for K and V of every peer, slightly more than 32 conversations of 6,000 tokens.
KV_TOKENS = 200_704
MAX_SEQUENCES = 32


@dataclass(frozen=True)
class Prompt:
    ids: list[int]
    text: str


class Vocabulary:
    """Makes prompts from words of one token each, with a leading space."""

    def __init__(self, words: list[tuple[int, str]], seed: int | str) -> None:
        self._words = words
        self._random = random.Random(seed)

    def prompt(self, num_tokens: int) -> Prompt:
        chosen = self._random.choices(self._words, k=num_tokens)
        return Prompt([token_id for token_id, _ in chosen], "".join(word for _, word in chosen))


@dataclass(frozen=True)
class Workload:
    """A workload with `repeats` measurements in a full run.

    One measurement typically takes `expected_s` and is cut off after `limit_s`.
    """

    name: str
    title: str
    repeats: int = 3
    expected_s: float = 5.0
    limit_s: float = 60.0


@dataclass(frozen=True)
class Start(Workload):
    """The time from process start to first token, and memory and CPU time when idle."""

    idle_s: float = 3.0


@dataclass(frozen=True)
class Overhead(Workload):
    """The time per step of one stream outside the device, for a server that reports its device time."""

    output_tokens: int = 128


@dataclass(frozen=True)
class Decode(Workload):
    streams: int = 1
    prompt_tokens: int = 32
    output_tokens: int = 128


@dataclass(frozen=True)
class Prefill(Workload):
    prompt_tokens: int = 512


@dataclass(frozen=True)
class History(Workload):
    """A new history, then the same with a few more tokens."""

    prompt_tokens: int = 6000
    more_tokens: int = 32
    output_tokens: int = 8


@dataclass(frozen=True)
class Interruption(Workload):
    """A long prompt that arrives among running streams."""

    streams: int = 8
    prompt_tokens: int = 4000
    after_tokens: int = 32
    max_output_tokens: int = 3000


@dataclass(frozen=True)
class Arrivals(Workload):
    """Requests of mixed lengths, in an open loop at `rate_per_s` (Poisson) or in a closed loop with `clients`."""

    rate_per_s: float = 0.0
    clients: int = 0
    num_requests: int = 40
    prompt_tokens: tuple[int, int] = (64, 640)
    output_tokens: tuple[int, int] = (32, 96)


@dataclass(frozen=True)
class Chat(Workload):
    """Conversations that grow to 6,000 tokens, with a pause before each turn but the first."""

    conversations: int = 8
    turns: int = 10
    user_tokens: int = 528
    output_tokens: int = 64
    think_s: float = 1.0
    """Mean of an exponential distribution, truncated at three times the mean."""


def arrivals(workload: Arrivals, vocabulary: Vocabulary, seed: int) -> list[tuple[Prompt, int]]:
    """Returns the prompts of a workload, with the number of output tokens of each."""
    rng = random.Random(f"{workload.name}/{seed}")
    return [
        (vocabulary.prompt(rng.randint(*workload.prompt_tokens)), rng.randint(*workload.output_tokens))
        for _ in range(workload.num_requests)
    ]


# Groups are measured in turn, so that measurements to be compared are close in time.
STEADY: list[Workload] = [
    Start("start", "process start to first token", expected_s=4, limit_s=300),
    *(Decode(f"decode-{n}", f"decode, {n} streams" if n > 1 else "decode, one stream", streams=n) for n in (1, 8, 32)),
    Overhead("overhead", "one stream: time per step outside kernels", expected_s=2),
    *(
        Prefill(f"prefill-{n}", f"prefill of {n:,}", prompt_tokens=n, expected_s=n / 1000 + 1)
        for n in (128, 512, 2048, 4096, 8000)
    ),
    History("history", "6,000-token history", expected_s=8),
]
LOADED: list[Workload] = [
    Interruption("interruption", "4,000 tokens arrive among 8 streams", expected_s=8),
    Arrivals("poisson-1", "open loop, 1 request/s", repeats=2, rate_per_s=1, num_requests=24, expected_s=26),
    Arrivals("poisson-3", "open loop, 3 requests/s", repeats=2, rate_per_s=3, num_requests=60, expected_s=24),
    Arrivals("closed-16", "closed loop, 16 clients", repeats=2, clients=16, num_requests=64, expected_s=20),
]
CHATS: list[Workload] = [
    Chat("chat-8", "8 conversations of 10 turns", repeats=2, expected_s=60, limit_s=150),
    Chat("chat-32", "32 conversations of 10 turns", repeats=2, conversations=32, expected_s=140, limit_s=200),
]
GROUPS: list[list[Workload]] = [STEADY, LOADED, CHATS]

_QUICK: dict[str, dict[str, Any]] = {
    "decode-1": {"output_tokens": 64},
    "decode-8": {"output_tokens": 48},
    "decode-32": {"output_tokens": 32},
    "interruption": {"prompt_tokens": 2048},
    "poisson-3": {"num_requests": 15},
    "closed-16": {"num_requests": 24},
    "chat-8": {"turns": 3, "think_s": 0.2},
}
_QUICK_LEFT_OUT = {"prefill-8000", "poisson-1", "chat-32"}
QUICK_LIMIT_S = 40.0


def quick() -> list[list[Workload]]:
    """Returns fewer and shorter workloads with one measurement each, which take a few minutes per peer."""
    groups = []
    for group in GROUPS:
        small = [w for w in group if w.name not in _QUICK_LEFT_OUT]
        made = []
        for w in small:
            limit_s = w.limit_s if isinstance(w, Start) else QUICK_LIMIT_S
            made.append(replace(w, repeats=1, limit_s=limit_s, **_QUICK.get(w.name, {})))
        groups.append(made)
    return groups
