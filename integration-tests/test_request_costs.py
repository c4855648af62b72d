"""Costly requests take only so much of the router's memory and CPU time as their bytes justify."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Trunkline, cpu_seconds, http, peak_bytes, resident_bytes, serving
from test_amplification import ENVIRONMENT
from vector_models import write_bert

MIB = 1 << 20
# The most documents of a request.
MAX_DOCUMENTS = 2048


@dataclass
class Cost:
    """What the router took for a request."""

    num_bytes: int = 0
    cpu_s: float = 0.0


@contextlib.contextmanager
def measured(server: Trunkline, what: str) -> Iterator[Cost]:
    """Measures the router inside a `with` block. The memory is what its peak exceeds that before the block by."""
    router, cost = server.router_pid(), Cost()
    # Lets the kernel forget the peak (proc(5)).
    Path(f"/proc/{router}/clear_refs").write_text("5")
    num_bytes, cpu_s = resident_bytes(router), cpu_seconds(router)
    yield cost
    cost.num_bytes, cost.cpu_s = peak_bytes(router) - num_bytes, cpu_seconds(router) - cpu_s
    print(f"{what}: {cost.num_bytes / MIB:.0f} MiB, {cost.cpu_s:.2f} CPU seconds")


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


def test_a_long_query_costs_its_bytes_once(tmp_path: Path) -> None:
    folder = write_bert(tmp_path, "BertForSequenceClassification", num_labels=1)
    with serving(model=folder, env=ENVIRONMENT) as server:
        assert post(server, "/v1/rerank", {"query": "a", "documents": ["b"]}).status_code == 200
        for num_documents, words in ((MAX_DOCUMENTS, "the limit is 64"), (3 * MAX_DOCUMENTS, "the limit is 2048")):
            body = {"query": "a " * 60_000, "documents": ["b"] * num_documents}
            with measured(server, f"{num_documents} documents") as cost:
                refused = post(server, "/v1/rerank", body)
            assert refused.status_code == 400 and words in refused.json()["error"]["message"], refused.text
            assert cost.num_bytes < 64 * MIB and cost.cpu_s < 3


@pytest.mark.parametrize("path", ["/v1/completions", "/detokenize"])
def test_ids_are_checked_before_they_are_decoded(server: Trunkline, path: str) -> None:
    token_id, text = longest_token(server)
    ids = [token_id] * 1_000_000
    body = {"prompt": ids, "echo": True, "max_tokens": 1} if path == "/v1/completions" else {"tokens": ids}
    with measured(server, path) as cost:
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
        measured(server, f"{num_choices} echoes") as cost,
        http.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=60) as stream,
    ):
        assert stream.status_code == 200
        assert next(stream.iter_bytes())
    all_bytes = num_choices * len(ids) * len(text)
    print(f"all echoes are {all_bytes / MIB:.0f} MiB")
    # Each output has the ids of the prompt, but not its text.
    assert cost.num_bytes < all_bytes * 3 / 4
