"""A token has the same logprob in a prompt as in an output: the same JSON number, however the prompt is chunked."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from harness import Trunkline, http

NUM_TOKENS = 40
TEXT = "The trunk line between the two exchanges carried every call of the valley, and when it broke in the storm "


def post(server: Trunkline, path: str, **body: Any) -> Any:
    """Returns the answer, with its numbers as the strings that the server wrote."""
    answer = http.post(server.base_url + path, json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text, parse_float=str)


def completion(server: Trunkline, prompt: str | list[int], **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "temperature": 0, "ignore_eos": True} | fields
    choice: dict[str, Any] = post(server, "/v1/completions", **body)["choices"][0]
    return choice


def crowd(server: Trunkline, seed: int) -> None:
    noise = random.Random(seed)
    for _ in range(3):
        prompt = noise.choices(range(100, 40_000), k=noise.randint(1, 150))
        server.complete(prompt, max_tokens=noise.randint(4, 30), echo=noise.random() < 0.5, logprobs=1)


@pytest.mark.parametrize(
    ("num_repeats", "others"),
    [(1, 7), (8, 0), pytest.param(1, 0, marks=pytest.mark.full), pytest.param(8, 7, marks=pytest.mark.full)],
)
def test_prompt_logprobs_equal_those_of_the_same_tokens_as_output(
    server: Trunkline, chunking: Trunkline, num_repeats: int, others: int
) -> None:
    prompt = server.tokenize(TEXT * num_repeats)
    generated = completion(server, prompt, max_tokens=NUM_TOKENS, logprobs=3)["logprobs"]
    parameters = {"max_new_tokens": NUM_TOKENS, "details": True, "ignore_eos_token": True}
    details = post(server, "/generate", inputs=TEXT * num_repeats, parameters=parameters)["details"]
    output = [token["id"] for token in details["tokens"]]
    whole = [*prompt, *output]
    with ThreadPoolExecutor(max(1, others)) as pool:
        crowding = [pool.submit(crowd, server, seed) for seed in range(others)]
        for which, max_tokens in [(server, 0), (chunking, 1)]:
            scored = completion(which, whole, max_tokens=max_tokens, echo=True, logprobs=3, prompt_logprobs=0)
            lists = scored["logprobs"]
            assert {len(values) for values in lists.values()} == {len(whole) + max_tokens}
            assert lists["token_logprobs"][0] is None
            assert lists["token_logprobs"][len(prompt) : len(whole)] == generated["token_logprobs"]
            assert lists["top_logprobs"][len(prompt) : len(whole)] == generated["top_logprobs"]
            # vLLM's field has the same numbers. Greedy tokens have rank 1.
            entries = [entry[str(token)] for entry, token in zip(scored["prompt_logprobs"][1:], whole[1:], strict=True)]
            assert [entry["logprob"] for entry in entries] == lists["token_logprobs"][1 : len(whole)]
            assert all(entry["rank"] == 1 for entry in entries[len(prompt) - 1 :])
        for done in crowding:
            done.result()


def test_logit_bias_changes_the_choice_but_not_the_logprobs(server: Trunkline) -> None:
    plain = completion(server, TEXT, max_tokens=1, logprobs=2)["logprobs"]
    best, second = plain["top_logprobs"][0].items()
    ids = {text: server.tokenize(text) for text, _ in (best, second)}
    assert all(len(tokens) == 1 for tokens in ids.values()), "the texts must be single tokens"
    bias = {str(ids[best[0]][0]): -100}
    moved = completion(server, TEXT, max_tokens=1, logprobs=2, logit_bias=bias)["logprobs"]
    assert moved["tokens"] == [second[0]]
    assert moved["token_logprobs"] == [second[1]]
    assert moved["top_logprobs"] == plain["top_logprobs"]
