"""Perplexity on a text of 10,000 tokens, compared with transformers in fp32 on the same GGUF's dequantised weights.

The text is the beginning of Lewis Carroll's "Alice's Adventures in Wonderland" (1865, in the public domain). The result
of transformers is recorded in `snapshots/perplexity.json`, so that the test computes only one side.
`TRUNKLINE_TEST_ALL=1 .venv-test/bin/python -m pytest integration-tests/test_perplexity.py --record` records it again in
about a minute.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import EMBEDDED, Trunkline, embedded_gguf, serving
from numpy.typing import NDArray

TEXT = Path(__file__).parent / "texts/long/alice.txt"
SNAPSHOT = Path(__file__).parent / "snapshots/perplexity.json"
# The text is split into windows without overlap, each scored separately. A window's first token has no score.
WINDOW_TOKENS = 1024
NUM_WINDOWS = 10
# The number of leading windows that every run scores. `test_accuracy.py` scores 2,000 other tokens.
NUM_FIRST = 1
# Relative difference of the perplexities.
MAX_DIFFERENCE = 0.001

Windows = list[list[int]]


def windows(server: Trunkline) -> Windows:
    """Tokenizes the text and splits it into windows."""
    ids = server.tokenize(TEXT.read_text())
    assert len(ids) >= NUM_WINDOWS * WINDOW_TOKENS
    return [ids[n * WINDOW_TOKENS : (n + 1) * WINDOW_TOKENS] for n in range(NUM_WINDOWS)]


def mean_nll(server: Trunkline, ids: list[int]) -> float:
    """Returns the mean negative log-likelihood of all tokens except the first."""
    answer = server.complete(ids, max_tokens=0, echo=True, logprobs=0)
    return -float(np.mean(answer["choices"][0]["logprobs"]["token_logprobs"][1:]))


def hash_of(texts: Windows) -> str:
    return hashlib.sha256(np.asarray(texts, dtype="<u4").tobytes()).hexdigest()


def record(texts: Windows) -> None:
    import torch
    import transformers

    folder, file = embedded_gguf().parent, embedded_gguf().name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    theirs = tokenizer.encode(TEXT.read_text(), verbose=False)
    assert [token for ids in texts for token in ids] == theirs[: NUM_WINDOWS * WINDOW_TOKENS]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)

    def mean(ids: list[int]) -> float:
        logits = model(torch.tensor([ids])).logits[0, :-1]
        return float(torch.nn.functional.cross_entropy(logits.double(), torch.tensor(ids[1:])))

    with torch.inference_mode():
        snapshot: dict[str, Any] = {
            "by": f"transformers {transformers.__version__}, torch {torch.__version__}, fp32",
            "model": file,
            "tokens_sha256": hash_of(texts),
            "mean_nlls": [round(mean(ids), 6) for ids in texts],
        }
    SNAPSHOT.write_text(json.dumps(snapshot, indent=1) + "\n")


def recorded(texts: Windows) -> NDArray[np.float64]:
    snapshot = json.loads(SNAPSHOT.read_text())
    again = "the recording is stale; hint: record it again as the module's docstring says"
    assert (snapshot["model"], snapshot["tokens_sha256"]) == (embedded_gguf().name, hash_of(texts)), again
    return np.asarray(snapshot["mean_nlls"])


def compare(what: str, ours: list[float], theirs: list[float]) -> float:
    """Returns the relative difference of the perplexities. All windows have the same number of tokens."""
    perplexities = math.exp(float(np.mean(ours))), math.exp(float(np.mean(theirs)))
    difference = perplexities[0] / perplexities[1] - 1
    each = ", ".join(f"{math.exp(own - other) - 1:+.3%}" for own, other in zip(ours, theirs, strict=True))
    print(f"{what}: {perplexities[0]:.4f} against {perplexities[1]:.4f} ({difference:+.3%}); windows: {each}")
    return difference


def test_perplexity_equals_that_of_the_dequantised_weights(server: Trunkline, pytestconfig: pytest.Config) -> None:
    texts = windows(server)
    if pytestconfig.getoption("--record"):
        record(texts)
    theirs = recorded(texts)[:NUM_FIRST]
    ours = [mean_nll(server, ids) for ids in texts[:NUM_FIRST]]
    assert abs(compare("against fp32", ours, list(theirs))) <= MAX_DIFFERENCE


@pytest.mark.full
def test_perplexity_of_the_whole_text(server: Trunkline) -> None:
    texts = windows(server)
    ours = [mean_nll(server, ids) for ids in texts]
    with serving("--kv-cache-dtype", "bf16", model=EMBEDDED) as exact:
        wide = [mean_nll(exact, ids) for ids in texts]
    assert abs(compare("against fp32", ours, list(recorded(texts)))) <= MAX_DIFFERENCE
    assert abs(compare("int8 against bf16", ours, wide)) <= MAX_DIFFERENCE
