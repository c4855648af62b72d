"""Vectors of encoders and of decoders on the cuda backend, beside the reference backend."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from tests.cuda.test_backend import ATOL, PROMPT, build_cuda
from tests.models.tiny import TinyModels
from tests.plans import new_chunk, new_start
from tests.tiers import first
from trunkline_server._proto.shard_pb2 import StepResult
from trunkline_server.backends.cuda.kernels.mean import mean
from trunkline_server.backends.interface import Backend, sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.errors import InvalidArgument
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.registry import ENCODERS
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint
from trunkline_server.weights.places import safetensors_places
from trunkline_server.weights.pooling import stated_pooling, with_pooling

VOCAB_SIZE = 60
LONG = np.random.default_rng(8).integers(0, VOCAB_SIZE, 37).tolist()
_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 70,
}  # fmt: skip
# Windows of 9 positions on either side in layers 1 and 2.
_MODERNBERT = {**_SIZES, "model_type": "modernbert", "num_hidden_layers": 3, "local_attention": 18}
_BIASES = {"attention_bias": True, "mlp_bias": True, "norm_bias": True}
_CLASSIFIER = {"architectures": ["SomeForSequenceClassification"], "num_labels": 3}
CASES: dict[str, dict[str, Any]] = {
    "bert": {**_SIZES, "model_type": "bert"},
    "bert_classes": {**_SIZES, "model_type": "bert", **_CLASSIFIER},
    "roberta": {**_SIZES, "model_type": "roberta", "type_vocab_size": 1, "pad_token_id": 1},
    "xlm-roberta_classes": {
        **_SIZES, "model_type": "xlm-roberta", "type_vocab_size": 1, "pad_token_id": 1, **_CLASSIFIER
    },
    "camembert": {**_SIZES, "model_type": "camembert", "type_vocab_size": 1, "pad_token_id": 1},
    "modernbert": _MODERNBERT,
    "modernbert_first": {**_MODERNBERT, **_BIASES, **_CLASSIFIER, "classifier_pooling": "cls"},
    "modernbert_classes": {**_MODERNBERT, **_CLASSIFIER, "classifier_pooling": "mean"},
}  # fmt: skip


def write_encoder(folder: Path, values: dict[str, Any]) -> Path:
    """Writes a model with random weights, under the names that its files have."""
    path = folder / "config.json"
    config = stated_pooling(config_from_json(path, values), path, values, has_head=False)
    shapes, random = weight_shapes(config), np.random.default_rng(3)
    tensors: dict[str, list[np.ndarray]] = {}
    for name, place in safetensors_places(shapes, config, ()).items():
        weight = random.standard_normal(shapes[name]) * 0.3 + name.lower().endswith("norm.weight")
        tensors.setdefault(place.tensor, []).append(weight.astype(np.float32))
    joined = {name: np.concatenate(parts) for name, parts in tensors.items()}
    safetensors.numpy.save_file(joined, folder / "model.safetensors")
    path.write_text(json.dumps(values))
    return folder


def vectors(backend: Backend, texts: Sequence[tuple[Sequence[int], int]]) -> list[np.ndarray]:
    """Computes the vectors of texts, each with the position of its second text, in one step."""
    block, chunks = 0, []
    for number, (tokens, second_text) in enumerate(texts, start=1):
        backend.start(new_start(number, tokens, len(tokens), sampling_params(), pool=second_text))
        blocks = range(block, block := block + -(-len(tokens) // backend.info.block_size))
        chunks.append(new_chunk(number, 0, len(tokens), list(blocks), sample=True))
    found = []
    for outcome in backend.step(chunks).sequences:
        assert outcome.WhichOneof("outcome") is None
        found.append(np.array(outcome.vector))
        backend.end(outcome.sequence_id)
    return found


@pytest.mark.parametrize("case", first(list(CASES), "bert_classes", "roberta", "modernbert_classes"))
def test_vectors_match_the_reference(case: str, device: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_encoder(tmp_path, CASES[case]))
    assert checkpoint.config.is_encoder and case.partition("_")[0] == checkpoint.config.architecture
    second_text = 20 if checkpoint.config.num_text_types > 1 else 0
    texts = [(LONG[:5], 0), (LONG, second_text), (LONG[:1], 0)]
    backend = build_cuda(checkpoint, device)
    found, expected = vectors(backend, texts), vectors(ReferenceBackend(checkpoint), texts)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=ATOL)
    (alone,) = vectors(backend, texts[1:2])
    # The interpreter's products have other bits for other numbers of rows.
    assert (alone == found[1]).all() if device == "cuda" else np.allclose(alone, found[1], atol=1e-4)


def test_all_encoders_are_compared() -> None:
    assert {values["model_type"] for values in CASES.values()} == set(ENCODERS)


def test_means_are_those_of_each_text(device: str) -> None:
    x = torch.randn(23, 150, generator=torch.Generator().manual_seed(1)).to(device)
    begins = torch.tensor([0, 9, 10, 23, 23], dtype=torch.int32, device=device)
    found = mean(x, begins)[[8, 9, 22]]
    expected = torch.stack([x[:9].double().mean(0), x[9].double(), x[10:].double().mean(0)])
    assert torch.equal(found, expected.float())


def test_keys_of_encoders_have_no_scaling(device: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_encoder(tmp_path, CASES["bert"]))
    with pytest.raises(InvalidArgument, match="`--kv-cache-dtype` is int4, but the model is an encoder"):
        build_cuda(checkpoint, device, kv_cache_dtype="int4")


def pooled_checkpoint(tiny_model: TinyModels, pooling: str) -> Checkpoint:
    checkpoint = open_checkpoint(tiny_model("qwen2_shallow").folder)
    checkpoint.config = with_pooling(checkpoint.config, pooling, "cuda")
    return checkpoint


def vector(backend: Backend, cuts: list[int], blocks: list[int]) -> np.ndarray:
    """Computes the vector of the prompt in chunks of these sizes."""
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling_params(), pool=0))
    first, result = 0, StepResult()
    for size in cuts:
        last = first + size == len(PROMPT)
        result = backend.step([new_chunk(1, first, size, [] if first else blocks, sample=last)])
        first += size
    backend.end(1)
    (outcome,) = result.sequences
    assert outcome.WhichOneof("outcome") is None
    return np.array(outcome.vector, np.float32)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_vectors_match_the_reference_and_do_not_depend_on_cuts(
    pooling: str, tiny_model: TinyModels, device: str
) -> None:
    checkpoint = pooled_checkpoint(tiny_model, pooling)
    backend = build_cuda(checkpoint, device)
    whole = vector(backend, [24], [9, 4])
    expected = vector(ReferenceBackend(checkpoint), [24], [0, 1])
    np.testing.assert_allclose(whole, expected, atol=ATOL)
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
        backend.start(new_start(sequence_id, tokens, len(tokens), sampling_params(), pool=0))
    backend.start(new_start(4, PROMPT[:5], 5, sampling_params()))
    backend.begin([new_chunk(4, 0, 5, [7], sample=True), new_chunk(2, 0, 24, [1, 2], sample=True)])
    backend.begin([new_chunk(3, 0, 7, [3], sample=True), new_chunk(4, 5, 1, [], sample=True)])
    chat, first = backend.finish().sequences
    second, _ = backend.finish().sequences
    assert [one.WhichOneof("outcome") for one in (chat, first, second)] == ["token", None, None]
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
        np.testing.assert_allclose(found, vector(ReferenceBackend(checkpoint), [24], [0, 1]), atol=max(5e-4, ATOL))


def test_models_that_only_make_vectors_are_refused_by_transformers(tiny_model: TinyModels) -> None:
    config = replace(pooled_checkpoint(tiny_model, "mean").config, has_output_head=False)
    with pytest.raises(InvalidArgument, match="the transformers backend makes no embeddings"):
        with_pooling(config, "auto", "transformers")
