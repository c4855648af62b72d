"""Texts between two others, on a real model with fill-in-the-middle tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness import INFILL_IDS, Trunkline, http, serving, sse_events, write_infilling

PREFIX = "def area(width, height):\n    "
SUFFIX = "\n\nprint(area(2, 3))\n"
EXTRA = [{"filename": "shapes.py", "text": "def circle(radius):\n    return 3.14159 * radius**2\n" * 20}]
NUM_TOKENS = 8
BLOCK = 64


@pytest.fixture(scope="module")
def infilling(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    path = tmp_path_factory.mktemp("infilling") / "infilling.gguf"
    write_infilling(path)
    with serving(model=str(path)) as server:
        yield server


def infill(server: Trunkline, **fields: Any) -> dict[str, Any]:
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": NUM_TOKENS, "temperature": 0} | fields
    answer = http.post(f"{server.base_url}/infill", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_gap_has_the_text_that_follows_its_tokens(infilling: Trunkline) -> None:
    ids = infilling.tokenize
    prompt = [INFILL_IDS["pre"], *ids(PREFIX), INFILL_IDS["suf"], *ids(SUFFIX), INFILL_IDS["mid"]]
    answer = http.post(
        f"{infilling.base_url}/v1/completions", json={"prompt": prompt, "max_tokens": NUM_TOKENS, "temperature": 0}
    ).json()
    expected = answer["choices"][0]["text"]
    whole = infill(infilling)
    assert (whole["content"], whole["tokens_evaluated"]) == (expected, len(prompt))
    suffixed = infilling.complete(PREFIX, suffix=SUFFIX, max_tokens=NUM_TOKENS, temperature=0)
    assert suffixed["choices"][0]["text"] == expected
    body = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": NUM_TOKENS, "temperature": 0, "stream": True}
    with http.stream("POST", f"{infilling.base_url}/infill", json=body) as answer:
        events = list(sse_events(answer.iter_lines()))
    assert "".join(event["content"] for event in events) == expected
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]


def test_keystrokes_find_the_text_before_them_in_the_cache(infilling: Trunkline) -> None:
    first = infill(infilling, input_extra=EXTRA)
    assert first["tokens_cached"] < BLOCK
    num_suffix = len(infilling.tokenize(SUFFIX))
    # The last token of the prefix may change with what is typed behind it.
    typed = infill(infilling, input_extra=EXTRA, input_prefix=PREFIX + "ret")
    assert typed["tokens_evaluated"] - typed["tokens_cached"] < num_suffix + 5 + BLOCK
    line = infill(infilling, input_extra=EXTRA, prompt="ret")
    assert line["tokens_evaluated"] - line["tokens_cached"] < 3 + BLOCK
    cold = infill(infilling, input_extra=EXTRA, prompt="ret", cache_salt="cold")
    assert cold["tokens_cached"] == 0 and cold["content"] == line["content"]


def test_a_model_without_the_tokens_says_so(server: Trunkline) -> None:
    answer = http.post(f"{server.base_url}/infill", json={"input_prefix": PREFIX, "input_suffix": SUFFIX})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "infill_tokens_missing")
