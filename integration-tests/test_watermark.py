"""A watermark is in every text that requests it and in no other, and its key is never shown."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import ALL_TIERS, EMBEDDED, ROOT, Trunkline, http, serving, sse_events

KEY = 0xC0FF_EE15_600D_5EED
# A score grows with the square root of the number of tokens.
NUM_TOKENS = 200
SEEDS = (1, 2, 3) if ALL_TIERS else (1,)
TIMEOUT_S = 120.0
PYTHON = ROOT / ".venv/bin/python"


@pytest.fixture(scope="module")
def key_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("watermark") / "watermark.key"
    path.write_text(f"{KEY:#x}\n")
    return path


@pytest.fixture(scope="module")
def marking(key_file: Path) -> Iterator[Trunkline]:
    """A server with its own key, which logs verbosely."""
    with serving("--watermark-key-file", str(key_file), "--log-level", "debug", model=EMBEDDED) as running:
        yield running


def generate(server: Trunkline, seed: int, **parameters: Any) -> dict[str, Any]:
    """Samples a story at temperature 1 through /generate."""
    given = {"do_sample": True, "seed": seed, "max_new_tokens": NUM_TOKENS, "ignore_eos_token": True, "details": True}
    body = {"inputs": f"Once upon a time in year {seed} there was", "parameters": given | parameters}
    answer = http.post(f"{server.base_url}/generate", json=body, timeout=TIMEOUT_S)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, Any] = answer.json()
    return parsed


def streamed(server: Trunkline, seed: int, **parameters: Any) -> str:
    given = {"do_sample": True, "seed": seed, "max_new_tokens": NUM_TOKENS, "ignore_eos_token": True}
    body = {"inputs": f"Once upon a time in year {seed} there was", "parameters": given | parameters}
    with http.stream("POST", f"{server.base_url}/generate_stream", json=body, timeout=TIMEOUT_S) as answer:
        assert answer.status_code == 200, answer.read()
        text: str = list(sse_events(answer.iter_lines()))[-1]["generated_text"]
        return text


def score(tokens: Any, *arguments: str) -> dict[str, float]:
    """Returns the command's report on an answer's tokens."""
    command = [str(PYTHON), "-m", "trunkline_server", "watermark", *arguments]
    done = subprocess.run(command, input=json.dumps(tokens), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    report: dict[str, float] = json.loads(done.stdout)
    return report


def tokenize(server: Trunkline, text: str) -> Any:
    return http.post(f"{server.base_url}/tokenize", json={"inputs": text}, timeout=TIMEOUT_S).json()


def test_watermarked_texts_are_detected_and_others_are_not(marking: Trunkline, key_file: Path) -> None:
    key = ("--key-file", str(key_file))
    for seed in SEEDS:
        marked = generate(marking, seed, watermark=True)
        plain = generate(marking, seed)
        # First with the sampled tokens, then with only the text.
        assert score(marked, *key)["z_score"] > 4, marked["generated_text"]
        assert score(tokenize(marking, marked["generated_text"]), *key)["z_score"] > 4, marked["generated_text"]
        assert abs(score(plain, *key)["z_score"]) < 4, plain["generated_text"]
        assert abs(score(marked)["z_score"]) < 4, "TGI's default key must not detect the watermark"
        assert marked["generated_text"] != plain["generated_text"]
    greedy = generate(marking, 4, watermark=True, do_sample=False)
    assert score(greedy, *key)["z_score"] > 2, greedy["generated_text"]


def test_server_without_a_key_uses_the_default_of_tgi(server: Trunkline) -> None:
    assert score(generate(server, 5, watermark=True))["z_score"] > 4


def test_concurrent_requests_do_not_change_watermarked_text(marking: Trunkline) -> None:
    seeds = (7, 8) if ALL_TIERS else (7,)
    settings: list[dict[str, Any]] = [{}, {"repetition_penalty": 1.2, "top_p": 0.9}]
    requests = list(itertools.product(seeds, (False, True), settings))

    def texts(workers: int) -> list[str]:
        def one(request: tuple[int, bool, dict[str, Any]]) -> str:
            seed, watermark, extra = request
            extra = extra | {"max_new_tokens": 60}
            text: str = generate(marking, seed, watermark=watermark, **extra)["generated_text"]
            assert streamed(marking, seed, watermark=watermark, **extra) == text
            return text

        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, requests))

    alone = texts(1)
    assert texts(len(requests)) == alone
    assert len(set(alone)) == len(alone), "the watermark did not change a text"


def test_watermark_leaves_logprobs_and_grammars_intact(marking: Trunkline) -> None:
    plain = generate(marking, 9, max_new_tokens=1, top_n_tokens=5)["details"]
    marked = generate(marking, 9, max_new_tokens=1, top_n_tokens=5, watermark=True)["details"]
    assert marked["top_tokens"] == plain["top_tokens"]
    dates = {"type": "regex", "value": "(19|20)[0-9]{2}-(0[1-9]|1[0-2])-[0-3][0-9]( [a-z]{3,8}){3}"}
    for seed in range(5):
        text = generate(marking, seed, grammar=dates, watermark=True, ignore_eos_token=False)["generated_text"]
        assert re.fullmatch(dates["value"], text), text


def test_key_is_never_shown(marking: Trunkline) -> None:
    generate(marking, 10, max_new_tokens=2, watermark=True)
    shown = [marking.log(), *marking.pids_commands(), http.get(f"{marking.base_url}/metrics").text]
    for text in shown:
        assert f"{KEY:x}" not in text.lower() and str(KEY) not in text
