"""Against transformers in fp32 from the same GGUF, teacher-forced: the next token's logprob and the top-1 choice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from harness import ROOT, embedded_gguf
from numpy.typing import NDArray
from trunkline_server.backends.interface import Backend
from trunkline_server.backends.registry import BackendOptions, build
from trunkline_server.weights.checkpoint import open_checkpoint

TEXTS = Path(__file__).parent / "texts"
DOCUMENT_TOKENS = 3000
# llama.cpp on the same file: 0.027 and 97.8 % over 4,769 positions.
MAX_MEAN_DIFFERENCE = 0.035
MIN_TOP1_AGREEMENT = 0.975

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def texts() -> dict[str, list[int]]:
    """Name → token ids: prose, code, several languages, and one long document."""
    folder, file = embedded_gguf().parent, embedded_gguf().name
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=file)
    ids = {path.stem: tokenizer.encode(path.read_text()) for path in sorted(TEXTS.glob("*.txt"))}
    document = (ROOT / "LICENSE").read_text() + (ROOT / "proto/trunkline/shard/v1/shard.proto").read_text()
    ids["document"] = tokenizer.encode(document)[:DOCUMENT_TOKENS]
    assert len(ids["document"]) == DOCUMENT_TOKENS
    assert sum(map(len, ids.values())) > 5000
    return ids


@pytest.fixture(scope="module")
def expected(texts: dict[str, list[int]]) -> dict[str, Logits]:
    """Logits [positions, vocabulary] of transformers in fp32."""
    folder, file = embedded_gguf().parent, embedded_gguf().name
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    with torch.inference_mode():
        return {name: model(torch.tensor([ids])).logits[0].numpy() for name, ids in texts.items()}


def load(backend: str) -> Backend:
    return build(backend, open_checkpoint(embedded_gguf()), BackendOptions(max_batch_total_tokens=4096))


def logprobs(logits: Logits, following: list[int]) -> Logits:
    """Log softmax of row p at the token that follows position p."""
    rows = torch.from_numpy(logits[: len(following)].copy())
    chosen = rows[torch.arange(len(following)), torch.tensor(following)]
    result: Logits = (chosen - torch.logsumexp(rows, dim=-1)).numpy()
    return result


def compare(backend: Any, texts: dict[str, list[int]], expected: dict[str, Logits]) -> tuple[float, float, int]:
    """Mean absolute difference of the next token's logprob, share of equal top-1 choices, number of positions."""
    differences, agreements = [], []
    for name, ids in texts.items():
        got = backend.score(ids)
        ours, theirs = logprobs(got, ids[1:]), logprobs(expected[name], ids[1:])
        same = got[:-1].argmax(axis=-1) == expected[name][:-1].argmax(axis=-1)
        print(f"{name}: {len(ours)} positions, {np.abs(ours - theirs).mean():.5f}, top-1 {same.mean():.2%}")
        differences.append(np.abs(ours - theirs))
        agreements.append(same)
    return (
        float(np.concatenate(differences).mean()),
        float(np.concatenate(agreements).mean()),
        sum(map(len, differences)),
    )


def test_cpu_backend_is_as_close_as_eight_bit_activations_allow(
    texts: dict[str, list[int]], expected: dict[str, Logits]
) -> None:
    """With the best instruction set at hand; the others give the same bits (`test_instruction_sets_agree`)."""
    difference, agreement, positions = compare(load("cpu"), texts, expected)
    print(f"cpu: {positions} positions, mean |Δ logprob| {difference:.5f}, top-1 {agreement:.2%}")
    assert positions >= 2000
    assert difference <= MAX_MEAN_DIFFERENCE
    assert agreement >= MIN_TOP1_AGREEMENT


def test_reference_backend_equals_transformers(texts: dict[str, list[int]], expected: dict[str, Logits]) -> None:
    short = {name: ids for name, ids in texts.items() if name != "document"}
    difference, agreement, positions = compare(load("reference"), short, expected)
    print(f"reference: {positions} positions, mean |Δ logprob| {difference:.7f}, top-1 {agreement:.2%}")
    assert positions >= 2000
    assert difference <= 1e-4
    assert agreement >= 0.999
