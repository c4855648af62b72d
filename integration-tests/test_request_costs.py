"""Costly requests take only so much of the router's memory as their bytes justify."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from harness import Trunkline, http, serving
from test_amplification import ENVIRONMENT, measured

MIB = 1 << 20


def post(server: Trunkline, path: str, body: dict[str, Any]) -> httpx.Response:
    return http.post(f"{server.base_url}{path}", json=body, timeout=300)


@pytest.fixture(scope="module")
def server() -> Iterator[Trunkline]:
    with serving(env=ENVIRONMENT) as server:
        yield server


def longest_token(server: Trunkline) -> tuple[int, str]:
    """Returns the id and the text of a long token: one that the tokenizer uses for many spaces."""
    tokens = post(server, "/tokenize", {"inputs": " " * 4096}).json()
    longest = max(tokens, key=lambda token: len(token["text"]))
    assert len(longest["text"]) > 16, longest
    return longest["id"], longest["text"]


@pytest.mark.parametrize("path", ["/v1/completions", "/detokenize"])
def test_ids_are_checked_before_they_are_decoded(server: Trunkline, path: str) -> None:
    token_id, text = longest_token(server)
    ids = [token_id] * 1_000_000
    body = {"prompt": ids, "echo": True, "max_tokens": 1} if path == "/v1/completions" else {"tokens": ids}
    with measured(server) as cost:
        refused = post(server, path, body)
    words = "the prompt has 1000000 tokens" if path == "/v1/completions" else "would take more than"
    assert refused.status_code in (400, 422) and words in refused.text, refused.text
    # The body and its ids; decoded, they are a text of many times the size.
    assert cost.num_bytes < 40 * MIB, f"the text has {len(ids) * len(text) / MIB:.0f} MiB"


def test_streams_do_not_hold_a_prompt_for_each_output(server: Trunkline) -> None:
    token_id, text = longest_token(server)
    num_choices, ids = 64, [token_id] * 4000
    body = {"prompt": ids, "echo": True, "n": num_choices, "max_tokens": 1, "stream": True}
    with (
        measured(server) as cost,
        http.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=60) as stream,
    ):
        assert stream.status_code == 200
        assert next(stream.iter_bytes())
    all_bytes = num_choices * len(ids) * len(text)
    print(f"all echoes are {all_bytes / MIB:.0f} MiB")
    # Each output has the ids of the prompt, but not its text.
    assert cost.num_bytes < all_bytes * 3 / 4
