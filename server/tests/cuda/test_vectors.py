"""Vectors of decoders on the cuda backend, beside the reference backend; `test_encoders.py` has the others."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from tests.cuda.test_backend import PROMPT, build_cuda
from tests.models.tiny import TinyModels
from trunkline_server.backends.interface import Backend, Chunk, Sampled, SamplingParams
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.errors import InvalidArgument
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint
from trunkline_server.weights.pooling import with_pooling


def pooled_checkpoint(tiny_model: TinyModels, pooling: str) -> Checkpoint:
    checkpoint = open_checkpoint(tiny_model("qwen2_shallow").folder)
    checkpoint.config = with_pooling(checkpoint.config, pooling, "cuda")
    return checkpoint


def vector(backend: Backend, cuts: list[int], blocks: list[int]) -> np.ndarray:
    """Computes the vector of the prompt in chunks of these sizes."""
    backend.start(1, PROMPT, len(PROMPT), SamplingParams(), pool=0)
    first, outcomes = 0, []
    for size in cuts:
        last = first + size == len(PROMPT)
        outcomes = backend.step([Chunk(1, first, size, [] if first else blocks, sample=last)])
        first += size
    backend.end(1)
    (outcome,) = outcomes
    assert isinstance(outcome, Sampled) and outcome.token_id is None
    return np.array(outcome.vector, np.float32)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_match_the_reference_and_do_not_depend_on_cuts(
    pooling: str, tiny_model: TinyModels, device: str
) -> None:
    checkpoint = pooled_checkpoint(tiny_model, pooling)
    backend = build_cuda(checkpoint, device)
    whole = vector(backend, [24], [9, 4])
    expected = vector(ReferenceBackend(checkpoint), [24], [0, 1])
    np.testing.assert_allclose(whole, expected, atol=2e-4)
    cut = vector(backend, [9, 15], [3, 1])
    # The interpreter's products have other bits for other numbers of rows.
    assert (cut == whole).all() if device == "cuda" else np.allclose(cut, whole, atol=1e-4)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_two_steps_in_flight_keep_their_vectors_beside_a_chat(
    pooling: str, tiny_model: TinyModels, device: str
) -> None:
    backend = build_cuda(pooled_checkpoint(tiny_model, pooling), device)
    alone = vector(backend, [24], [9, 4])
    texts = {2: PROMPT, 3: PROMPT[:7]}
    for sequence_id, tokens in texts.items():
        backend.start(sequence_id, tokens, len(tokens), SamplingParams(), pool=0)
    backend.start(4, PROMPT[:5], 5, SamplingParams())
    backend.begin([Chunk(4, 0, 5, [7], sample=True), Chunk(2, 0, 24, [1, 2], sample=True)])
    backend.begin([Chunk(3, 0, 7, [3], sample=True), Chunk(4, 5, 1, [], sample=True)])
    chat, first = backend.finish()
    second, _ = backend.finish()
    assert isinstance(chat, Sampled) and chat.token_id is not None
    assert isinstance(first, Sampled) and isinstance(second, Sampled)
    np.testing.assert_allclose(first.vector, alone, atol=1e-4)
    assert len(second.vector) == len(alone) and list(second.vector) != list(first.vector)


def test_scores_and_dense_modules_match_the_reference(tiny_model: TinyModels, device: str, tmp_path: Path) -> None:
    source = tiny_model("qwen2_shallow").folder
    hidden = json.loads((source / "config.json").read_text())["hidden_size"]
    random = np.random.default_rng(3)
    kind = "sentence_transformers.models."
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense")]
    dense = {"in_features": hidden, "out_features": 48, "bias": True}
    changes: dict[str, dict[str, Any]] = {
        "dense": {"modules.json": [{"path": path, "type": kind + name} for path, name in modules],
                  "1_Pooling/config.json": {"pooling_mode_lasttoken": True}, "2_Dense/config.json": dense},
        "answers": {"modules.json": [{"path": "1_LogitScore", "type": "x.LogitScore"}],
                    "1_LogitScore/config.json": {"true_token_id": 7, "false_token_id": 3}},
    }  # fmt: skip
    for name, files in changes.items():
        folder = tmp_path / name
        shutil.copytree(source, folder)
        for path, values in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(json.dumps(values))
        if name == "dense":
            weights = {"linear.weight": random.normal(0, 0.2, (48, hidden)), "linear.bias": random.normal(0, 1, 48)}
            tensors = {key: values.astype(np.float32) for key, values in weights.items()}
            safetensors.numpy.save_file(tensors, folder / "2_Dense/model.safetensors")
        checkpoint = open_checkpoint(folder)
        found = vector(build_cuda(checkpoint, device), [24], [9, 4])
        np.testing.assert_allclose(found, vector(ReferenceBackend(checkpoint), [24], [0, 1]), atol=5e-4)


def test_models_that_only_make_vectors_are_refused_by_transformers(tiny_model: TinyModels) -> None:
    config = replace(pooled_checkpoint(tiny_model, "mean").config, has_output_head=False)
    with pytest.raises(InvalidArgument, match="the transformers backend makes no embeddings"):
        with_pooling(config, "auto", "transformers")
