"""Drafts change the number of steps and nothing else: every choice has the same text, tokens and logprobs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import ALL_TIERS, Trunkline, http, serving, wait_for
from test_exact_dialects import DIALECTS, ask, ask_streamed

NUM_OTHERS = 31 if ALL_TIERS else 8
LINE = "The ferry leaves at nine, the train at ten, and the bus at eleven. "
CODE = "def area(width, height):\n    return width * height\n\n\ndef volume(width, height, depth):\n    return"
LIST = "Ada lives in London. Alan lives in London. Grace lives in London. As JSON: "
PEOPLE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "city": {"enum": ["London", "Paris"]}},
        "required": ["name", "city"],
        "additionalProperties": False,
    },
    "minItems": 3,
}
PENALTIES = {"presence_penalty": 0.05, "frequency_penalty": 0.02, "repetition_penalty": 1.01}
SAMPLED = {"temperature": 0.8, "top_p": 0.95, "seed": 7}
# Requests whose answers draft much, each with other rules for its tokens.
CASES: dict[str, dict[str, Any]] = {
    "greedy": {"prompt": LINE * 4, "logprobs": 3},
    "sampled": {"prompt": LINE * 4, "logprobs": 3} | SAMPLED,
    "hot": {"prompt": LINE * 6, "temperature": 1.5, "seed": 2**63, "top_k": 40, "min_p": 0.02, "logprobs": 2},
    "penalties": {"prompt": LINE * 4, "logprobs": 2} | SAMPLED | PENALTIES,
    "biased": {"prompt": CODE * 3, "logit_bias": {"198": 2, "28": -3}, "min_tokens": 30} | SAMPLED,
    "typical": {"prompt": CODE * 3, "typical_p": 0.9} | SAMPLED,
    "stopped": {"prompt": CODE * 3, "stop": ["depth\n\n"], "ignore_eos": False},
    "short": {"prompt": LINE * 4, "max_tokens": 5},
    "choices": {"prompt": LINE * 4, "n": 3} | SAMPLED,
    "scored": {"prompt": LINE * 2, "prompt_logprobs": 1},
    "schema": {"prompt": LIST, "guided_json": PEOPLE, "ignore_eos": False, "max_tokens": 120},
    "schema_sampled": {"prompt": LIST, "guided_json": PEOPLE, "ignore_eos": False, "max_tokens": 120} | SAMPLED,
    "schema_scored": {"prompt": LIST, "guided_json": PEOPLE, "ignore_eos": False, "max_tokens": 60, "logprobs": 2},
    "regex": {"prompt": LIST, "guided_regex": "(Ada|Alan|Grace)( (Ada|Alan|Grace)){10,20}", "ignore_eos": False},
}


@pytest.fixture(scope="module")
def drafting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    """A server that drafts wherever it can, with room for few sequences, and a store."""
    store = ("--kv-disk-path", str(tmp_path_factory.mktemp("store")), "--kv-disk-size", "32MiB")
    with serving("--speculate", "12", "--max-batch-total-tokens", "1024", *store) as running:
        yield running


def choices(server: Trunkline, body: dict[str, Any], **fields: Any) -> Any:
    return server.complete(**({"max_tokens": 60, "ignore_eos": True} | body | fields))["choices"]


@pytest.fixture(scope="module")
def expected(server: Trunkline) -> dict[str, Any]:
    """The choices without drafts, by case."""
    return {name: choices(server, body, speculation=False) for name, body in CASES.items()}


def drafts(server: Trunkline) -> tuple[float, float]:
    metrics = server.metrics()
    return metrics["trunkline_drafted_tokens_total"], metrics["trunkline_accepted_draft_tokens_total"]


@pytest.mark.parametrize("name", CASES)
def test_drafts_change_no_bit(drafting: Trunkline, expected: dict[str, Any], name: str) -> None:
    before = drafts(drafting)
    assert choices(drafting, CASES[name]) == expected[name]
    drafted, accepted = (after - count for after, count in zip(drafts(drafting), before, strict=True))
    assert drafted >= accepted
    if name not in ("short", "hot"):
        assert accepted > 0, "the case drafts nothing"
    assert choices(drafting, CASES[name]) == expected[name], "with a prefix hit"


def test_drafts_change_no_bit_beside_others_and_when_sequences_are_preempted(
    drafting: Trunkline, expected: dict[str, Any]
) -> None:
    before = drafting.metrics()["trunkline_preemptions_total"]

    def other(number: int) -> None:
        prompt = f"Number {number}. " + LINE * (number % 7 + 3)
        drafting.complete(prompt, max_tokens=250 + number, ignore_eos=True, temperature=0.7, seed=number)

    with ThreadPoolExecutor(NUM_OTHERS + len(CASES)) as pool:
        others = [pool.submit(other, number) for number in range(NUM_OTHERS)]
        ours = {name: pool.submit(choices, drafting, body) for name, body in CASES.items()}
        assert {name: each.result() for name, each in ours.items()} == expected
        for each in others:
            each.result()
    assert drafting.metrics()["trunkline_preemptions_total"] > before


def test_drafts_change_no_bit_when_the_shard_is_killed(drafting: Trunkline, expected: dict[str, Any]) -> None:
    replayed = drafting.metrics()["trunkline_sequences_replayed_total"]
    names = ("greedy", "penalties", "schema_sampled")
    with ThreadPoolExecutor(len(names)) as pool:
        _, accepted = drafts(drafting)
        ours = {name: pool.submit(choices, drafting, CASES[name]) for name in names}
        wait_for(lambda: drafts(drafting)[1] > accepted, "a right draft")
        os.kill(drafting.shard_pid(), signal.SIGKILL)
        assert {name: each.result() for name, each in ours.items()} == {name: expected[name] for name in names}
    assert drafting.metrics()["trunkline_sequences_replayed_total"] > replayed


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_has_the_same_text_with_drafts(server: Trunkline, drafting: Trunkline, name: str) -> None:
    dialect, prompt = DIALECTS[name], LINE * 5
    plain = ask(server, dialect, prompt, 5)
    assert ask(drafting, dialect, prompt, 5) == plain
    assert ask_streamed(drafting, dialect, prompt, 5) == plain


def test_a_prediction_is_counted_and_changes_nothing(server: Trunkline, drafting: Trunkline) -> None:
    fields = {"max_tokens": 50}
    plain = server.chat("Name the days of the week.", speculation=False, **fields)
    text = plain["choices"][0]["message"]["content"]
    for guess, is_right in ((text, True), ("Something else entirely, " * 5, False)):
        prediction = {"type": "content", "content": guess}
        answer = drafting.chat("Name the days of the week.", prediction=prediction, **fields)
        assert answer["choices"] == plain["choices"]
        details = answer["usage"]["completion_tokens_details"]
        if is_right:
            assert details["accepted_prediction_tokens"] > 30
        else:
            assert details["rejected_prediction_tokens"] > 0


def test_speculation_off_computes_no_draft(tmp_path: Path) -> None:
    with serving("--speculate", "off") as server:
        server.complete(LINE * 4, max_tokens=40, ignore_eos=True)
        assert drafts(server) == (0, 0)
        text = http.get(f"{server.base_url}/metrics").text
        assert "trunkline_step_drafts_count 0" in text


def test_a_draft_model_changes_no_bit(expected: dict[str, Any]) -> None:
    with serving("--speculate", "4", "--speculative-model", Trunkline.default_model) as server:
        assert {name: choices(server, body) for name, body in CASES.items()} == expected
        # This text has no drafts of its own, so all of them come from the draft model, which is the model itself.
        body = {"prompt": "Once upon a time, in a land far away,", "max_tokens": 30}
        before = drafts(server)
        drafted = choices(server, body)
        num_drafted, num_right = (after - count for after, count in zip(drafts(server), before, strict=True))
        assert drafted == choices(server, body, speculation=False)
        assert num_drafted >= num_right > 15
        assert server.metrics()["trunkline_draft_seconds_total"] > 0
