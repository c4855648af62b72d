"""The client, metrics, prompts and records of the comparison with other servers are correct.

`make test` checks only that the package imports and computes its metrics; `make test-all` runs the rest.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import ROOT, embedded_gguf

sys.path.insert(0, str(ROOT / "benchmark"))

import itertools

from client import HttpError, Receiver, Stream, parse
from peers.measure import Measurer
from peers.metrics import Slo, decode_rate, percentile, served
from peers.store import Store
from peers.words import single_token_words
from peers.workload import (
    CONTEXT_TOKENS,
    GROUPS,
    Arrivals,
    Chat,
    Decode,
    Prefill,
    Prompt,
    Vocabulary,
    arrivals,
    conversations,
)

WORDS = [(n, f" word{n}") for n in range(100)]


def answer(body: bytes, *, cut_at: int, head: bytes = b"Transfer-Encoding: chunked") -> Stream:
    """Parses a response that arrives in two parts."""

    async def receive() -> Stream:
        receiver = Receiver(watch=None)
        whole = b"HTTP/1.1 200 OK\r\n" + head + b"\r\n\r\n" + body
        receiver.data_received(whole[:cut_at])
        receiver.data_received(whole[cut_at:])
        receiver.connection_lost(None)
        await receiver.ended
        assert receiver.status == 200
        return parse(0.0, receiver.events)

    return asyncio.run(receive())


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


FIRST = b'data: {"choices":[{"text":" a","finish_reason":null}]}\n\n'
SECOND = b'data: {"choices":[{"text":" b","finish_reason":"length"}]}\r\n\r\n'
USAGE = b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\ndata: [DONE]\n\n'


ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\n'
NO_TEXT = b'data: {"choices":[{"delta":{"content":""},"finish_reason":null}]}\n\n'


@pytest.mark.full
def test_client_reads_events_wherever_the_stream_is_cut() -> None:
    # An event is split over chunks, one chunk holds several, and both kinds of line end occur.
    whole = FIRST + SECOND + USAGE
    body = chunk(whole[:20]) + chunk(whole[20:]) + b"0\r\n\r\n"
    for cut_at in range(1, len(body) + 40):
        stream = answer(body, cut_at=cut_at)
        assert (stream.text, stream.num_tokens, len(stream.events)) == (" a b", 2, 2), cut_at
    assert answer(whole, cut_at=60, head=b"Connection: close").text == " a b", "a body without chunks"
    with pytest.raises(HttpError, match="broke off"):
        answer(chunk(FIRST) + chunk(b'data: {"error":{"message":"out of blocks"}}\n\n') + b"0\r\n\r\n", cut_at=50)
    for events, num_tokens in ((ROLE + WORD, 1), (ROLE + WORD + NO_TEXT, 2)):
        assert len(answer(chunk(events) + b"0\r\n\r\n", cut_at=30).events) == num_tokens, "a role is no token"


def stream(sent: float, *events: float, tokens: int | None = None) -> Stream:
    return Stream(sent, list(events), {"completion_tokens": tokens or len(events)})


def test_metrics_follow_their_definitions() -> None:
    made = stream(1.0, 1.5, 1.6, 1.8, tokens=4)
    assert made.ttft_s == pytest.approx(0.5)
    assert made.tpot_s == pytest.approx((0.8 - 0.5) / 3)
    assert made.itl_s == pytest.approx([0.1, 0.2])
    assert percentile([4, 1, 3, 2], 50) == 2.5
    assert percentile([7], 99) == 7
    good, slow_start, slow_tokens = stream(0, 0.1, 0.2), stream(0, 0.9, 1.0), stream(0, 0.1, 2.0)
    metrics = served([good, slow_start, slow_tokens], Slo(ttft_ms=500, tpot_ms=200))
    assert metrics["goodput_per_s"] == pytest.approx(1 / 2.0)
    assert metrics["good_share"] == pytest.approx(1 / 3)


@pytest.mark.full
def test_decode_rate_is_taken_while_all_streams_run() -> None:
    early = stream(0, *(n / 10 for n in range(1, 12)))
    late = stream(0, *(n / 10 for n in range(2, 13)))
    metrics = decode_rate([early, late])
    assert metrics["tokens_per_s"] == pytest.approx(20)
    assert not metrics["in_turn"]
    metrics = decode_rate([stream(0, 0.1, 0.2, 0.3), stream(0, 1.1, 1.2, 1.3)])
    assert metrics["in_turn"]
    assert metrics["tokens_per_s"] == pytest.approx(5 / 1.2)


@pytest.mark.full
def test_prompts_are_the_same_as_text_and_as_tokens() -> None:
    words = single_token_words(embedded_gguf())
    assert len(words) > 10_000
    prompt = Vocabulary(words, seed=3).prompt(50)
    by_id = dict(words)
    assert "".join(by_id[token_id] for token_id in prompt.ids) == prompt.text
    assert len(prompt.ids) == 50


@pytest.mark.full
def test_workloads_depend_only_on_the_seed() -> None:
    load = next(w for group in GROUPS for w in group if isinstance(w, Arrivals) and w.rate_per_s)
    first, again, other = (arrivals(load, Vocabulary(WORDS, seed), seed) for seed in (1, 1, 2))
    assert first == again != other
    assert all(a.at_s < b.at_s for a, b in itertools.pairwise(first))
    mean_gap_s = first[-1].at_s / len(first)
    assert 0.4 / load.rate_per_s < mean_gap_s < 2.5 / load.rate_per_s


@pytest.mark.full
def test_prompts_of_different_workloads_share_no_prefix() -> None:
    # Otherwise a server with a prefix cache would have less to compute than a peer without one.
    class Recorder:
        def __init__(self) -> None:
            self.prefixes: list[tuple[int, ...]] = []

        def batch(self, prompts: list[Prompt], output_tokens: int, limit_s: float) -> list[Stream]:
            self.prefixes += [tuple(prompt.ids[:16]) for prompt in prompts]
            return [stream(0, 0.1, 0.2) for _ in prompts]

    recorder = Recorder()
    measurer = Measurer(WORDS, Slo(ttft_ms=1, tpot_ms=1), seed=1)
    workloads = [w for group in GROUPS for w in group if isinstance(w, Decode | Prefill)]
    for workload in workloads:
        measurer.measure(recorder, workload)  # type: ignore[arg-type]
    assert len(recorder.prefixes) == len(set(recorder.prefixes)) > len(workloads)


@pytest.mark.full
def test_cached_prompt_is_not_measured_as_a_cold_one() -> None:
    class Cached:
        def batch(self, prompts: list[Prompt], output_tokens: int, limit_s: float) -> list[Stream]:
            usage = {"completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 128}}
            return [Stream(0, [0.1], usage) for _ in prompts]

    measurer = Measurer(WORDS, Slo(ttft_ms=1, tpot_ms=1), seed=1)
    with pytest.raises(HttpError, match="128 tokens"):
        measurer.measure(Cached(), Prefill("prefill-512", "", prompt_tokens=512))  # type: ignore[arg-type]


@pytest.mark.full
def test_conversations_fit_into_the_context() -> None:
    for chat in (w for group in GROUPS for w in group if isinstance(w, Chat)):
        made = conversations(chat, Vocabulary(WORDS, 1), 1)
        assert len(made) == chat.conversations
        by_turns = chat.turns * (chat.user_tokens + chat.output_tokens)
        # The chat template adds up to 16 tokens per turn.
        assert 5_500 < by_turns + chat.turns * 16 < CONTEXT_TOKENS


SETTINGS: dict[str, Any] = {"seed": 1}


@pytest.mark.full
def test_interrupted_run_resumes_without_failures_and_truncated_records(tmp_path: Path) -> None:
    store = Store(tmp_path / "peers.jsonl", SETTINGS)
    store.open(resume=False)
    store.add("trunkline", "decode-1", 0, {"tokens_per_s": 10.0})
    store.add("vllm", "decode-1", 0, {"error": "no token"})
    store.add("trunkline", "decode-1", 1, {"tokens_per_s": 11.0})
    store.path.write_text(store.path.read_text()[:-9])
    resumed = Store(store.path, SETTINGS)
    resumed.open(resume=True)
    assert resumed.values("trunkline", "decode-1", "tokens_per_s") == [10.0]
    assert not resumed.has("vllm", "decode-1", 0), "a failed measurement is not repeated"
    resumed.add("trunkline", "decode-1", 1, {"tokens_per_s": 12.0})
    again = Store(store.path, SETTINGS)
    again.open(resume=True)
    assert again.values("trunkline", "decode-1", "tokens_per_s") == [10.0, 12.0]
    with pytest.raises(ValueError, match="other settings"):
        Store(store.path, SETTINGS | {"seed": 2}).open(resume=True)
