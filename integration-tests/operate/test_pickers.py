"""Endpoint pickers' own packages against a live server.

The Go module in `picker/` has the scraper of the Gateway API Inference Extension, and the event subscriber, index and
prefix scorer of llm-d. Building it takes minutes of processor time where Go's cache is empty.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Trunkline, free_port, http, serving, wait_for

BLOCK = 64
POD = "server"
TEXT = "The owl counts the stars above the quiet harbour. " * 30

pytestmark = [
    pytest.mark.full,
    pytest.mark.timeout(900),
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Go to build the pickers' packages"),
]


@pytest.fixture(scope="module")
def picker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("picker") / "picker"
    module = Path(__file__).parent / "picker"
    built = subprocess.run(["go", "build", "-o", program, "."], cwd=module, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return program


@pytest.fixture(scope="module")
def publishing() -> Iterator[tuple[Trunkline, str]]:
    port = free_port()
    with serving("--kv-events-endpoint", f"tcp://*:{port}", env={"POD_NAME": POD}) as server:
        yield server, f"tcp://127.0.0.1:{port}"


def test_the_scraper_reads_the_metrics(picker: Path, publishing: tuple[Trunkline, str]) -> None:
    server, _ = publishing
    scraped = subprocess.run(
        [picker, "metrics", server.base_url.removeprefix("http://")], capture_output=True, text=True, check=False
    )
    assert scraped.returncode == 0, scraped.stderr
    known = json.loads(scraped.stdout)
    metrics = server.metrics()
    assert known["CacheBlockSize"] == BLOCK
    assert known["CacheNumBlocks"] == metrics["trunkline_kv_blocks"]
    assert (known["WaitingQueueSize"], known["RunningRequestsSize"], known["KVCacheUsagePercent"]) == (0, 0, 0)
    assert not known["ActiveModels"]


class Scorer:
    """llm-d's index of the server's events."""

    def __init__(self, picker: Path, endpoint: str, model: str) -> None:
        self.process = subprocess.Popen(
            [picker, "score", endpoint, model, str(BLOCK)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def score(self, tokens: list[int], salt: str = "") -> float:
        """Returns the number of the prompt's blocks that the index knows on this server."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"tokens": tokens, "salt": salt}) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the picker ended"
        scores: dict[str, float] = json.loads(answer)
        assert set(scores) <= {POD}
        return scores.get(POD, 0)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        assert self.process.wait(30) == 0


@pytest.fixture
def scorer(picker: Path, publishing: tuple[Trunkline, str]) -> Iterator[Scorer]:
    server, endpoint = publishing
    model = http.get(f"{server.base_url}/v1/models").json()["data"][0]["id"]
    scorer = Scorer(picker, endpoint, model)

    # A subscription takes effect with a delay, so each attempt has a prompt that was not cached before.
    salts = itertools.count()

    def is_subscribed() -> bool:
        salt = f"attempt {id(scorer)} {next(salts)}"
        prompt = [7] * (BLOCK + 1)
        server.complete(prompt, max_tokens=1, cache_salt=salt)
        return scorer.score(prompt, salt) > 0

    wait_for(is_subscribed, "the subscription to take effect")
    yield scorer
    scorer.close()


def rendered(server: Trunkline, route: str, body: dict[str, Any]) -> Any:
    answer = http.post(f"{server.base_url}{route}/render", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_scorer_finds_what_is_cached(scorer: Scorer, publishing: tuple[Trunkline, str]) -> None:
    server, _ = publishing
    chat = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1, "temperature": 0}
    tokens = rendered(server, "/v1/chat/completions", chat)["token_ids"]
    num_blocks = len(tokens) // BLOCK
    assert num_blocks >= 3
    assert scorer.score(tokens) == 0
    http.post(f"{server.base_url}/v1/chat/completions", json=chat, timeout=300).raise_for_status()
    wait_for(lambda: scorer.score(tokens) == num_blocks, "all blocks to be indexed")
    # The rendered tokens are those that were cached.
    again = server.complete(tokens, max_tokens=1)
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] >= num_blocks * BLOCK - 1
    # A continuation that differs after two blocks has two.
    other = tokens[: 2 * BLOCK] + [token ^ 1 for token in tokens[2 * BLOCK :]]
    assert scorer.score(other) == 2


def test_the_scorer_tells_salts_apart(scorer: Scorer, publishing: tuple[Trunkline, str]) -> None:
    server, _ = publishing
    text = "salted " + TEXT
    (prompt,) = rendered(server, "/v1/completions", {"prompt": text, "cache_salt": "pepper"})
    tokens, num_blocks = prompt["token_ids"], len(prompt["token_ids"]) // BLOCK
    server.complete(text, max_tokens=1, cache_salt="pepper")
    wait_for(lambda: scorer.score(tokens, "pepper") == num_blocks, "all blocks to be indexed")
    assert scorer.score(tokens) == 0
    assert scorer.score(tokens, "other") == 0
