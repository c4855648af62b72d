"""The metrics, prompts and records of the comparison with other servers are correct.

`make test` checks only that the package imports and computes its metrics; `make test-all` runs the rest.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from harness import ROOT, embedded_gguf

sys.path.insert(0, str(ROOT / "benchmark"))

from load import LoadError, Stream
from peers.measure import must_be_cold
from peers.metrics import Slo, decode_rate, percentile, served
from peers.store import Store
from peers.words import single_token_words
from peers.workload import Vocabulary

WORDS = [(n, f" word{n}") for n in range(100)]


def stream(sent: float, *events: float, tokens: int | None = None) -> Stream:
    return Stream(sent, list(events), num_tokens=tokens or len(events))


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


def test_a_cached_prompt_is_not_measured_as_a_cold_one() -> None:
    must_be_cold(Stream(0, [0.1], prompt_tokens=512))
    with pytest.raises(LoadError, match="128 tokens"):
        must_be_cold(Stream(0, [0.1], prompt_tokens=512, cached_tokens=128))


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


SETTINGS = {"seed": 1}


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
