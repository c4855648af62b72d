"""Perplexity on a text of 10,000 tokens, beside that of transformers in fp32 with the same GGUF's dequantised weights.

The text is the beginning of Lewis Carroll's "Alice's Adventures in Wonderland" (1865, in the public domain). What
transformers says of each token is recorded in `snapshots/perplexity.json`, so that the test computes one side only;
`.venv-test/bin/python -m pytest integration-tests/test_perplexity.py --record` records it again (a minute).
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from harness import embedded_gguf
from numpy.typing import NDArray
from trunkline_server.backends.registry import BackendOptions, build
from trunkline_server.weights.checkpoint import open_checkpoint

TEXT = Path(__file__).parent / "texts/long/alice.txt"
SNAPSHOT = Path(__file__).parent / "snapshots/perplexity.json"
# The text is cut into windows that are scored each for itself, without overlap; a window's first token has no score.
WINDOW_TOKENS = 1024
NUM_WINDOWS = 10
# Of the perplexity, relative.
MAX_DIFFERENCE = 0.005

Nlls = NDArray[np.float64]


def windows() -> list[list[int]]:
    """The text in the model's tokens."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(embedded_gguf().parent, gguf_file=embedded_gguf().name)
    ids = tokenizer.encode(TEXT.read_text(), verbose=False)
    assert len(ids) >= NUM_WINDOWS * WINDOW_TOKENS
    return [ids[n * WINDOW_TOKENS : (n + 1) * WINDOW_TOKENS] for n in range(NUM_WINDOWS)]


def nlls(logits: torch.Tensor, ids: list[int]) -> Nlls:
    """Minus the log-probability of each token but the first, given those before it."""
    following = torch.tensor(ids[1:])
    chosen = logits[torch.arange(len(following)), following].double()
    return (torch.logsumexp(logits[:-1], dim=-1).double() - chosen).numpy()


def perplexity(scores: Nlls) -> float:
    return math.exp(float(scores.mean()))


def hash_of(texts: list[list[int]]) -> str:
    return hashlib.sha256(np.asarray(texts, dtype="<u4").tobytes()).hexdigest()


def record(texts: list[list[int]]) -> None:
    folder, file = embedded_gguf().parent, embedded_gguf().name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    with torch.inference_mode():
        scores = [nlls(model(torch.tensor([ids])).logits[0], ids) for ids in texts]
    snapshot = {
        "by": f"transformers {transformers.__version__}, torch {torch.__version__}, fp32",
        "model": file,
        "tokens_sha256": hash_of(texts),
        "nlls": [[round(float(score), 4) for score in window] for window in scores],
    }
    # A window a line.
    SNAPSHOT.write_text(json.dumps(snapshot).replace("], [", "],\n[") + "\n")


def test_perplexity_is_that_of_the_dequantised_weights(pytestconfig: pytest.Config) -> None:
    texts = windows()
    if pytestconfig.getoption("--record"):
        record(texts)
    snapshot = json.loads(SNAPSHOT.read_text())
    again = "record again as the head of this file says"
    assert (snapshot["model"], snapshot["tokens_sha256"]) == (embedded_gguf().name, hash_of(texts)), again
    theirs = np.asarray(snapshot["nlls"])
    options = BackendOptions(max_batch_total_tokens=WINDOW_TOKENS)
    backend = build("cpu", open_checkpoint(embedded_gguf()), options)
    # `copy`: torch wants to own what it is given.
    ours = np.stack([nlls(torch.from_numpy(backend.score(ids).copy()), ids) for ids in texts])
    assert ours.shape == theirs.shape == (NUM_WINDOWS, WINDOW_TOKENS - 1)
    difference = perplexity(ours) / perplexity(theirs) - 1
    print(
        f"{ours.size} tokens: perplexity {perplexity(ours):.4f} for {perplexity(theirs):.4f} ({difference:+.3%}), "
        f"mean |Δ logprob| {np.abs(ours - theirs).mean():.4f}"
    )
    assert abs(difference) <= MAX_DIFFERENCE
