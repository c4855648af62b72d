"""Encoders on the cuda backend, beside the reference backend."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from tests.cuda.test_backend import build_cuda
from tests.tiers import first
from trunkline_server.backends.cuda.kernels.mean import mean
from trunkline_server.backends.interface import Backend, Chunk, Sampled, SamplingParams
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.errors import InvalidArgument
from trunkline_server.models.config_encoder import ENCODERS, encoder_config
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.encoder_places import encoder_places
from trunkline_server.weights.pooling import stated_pooling

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
    config = stated_pooling(encoder_config(path, values["model_type"], values), path, values, has_head=False)
    shapes, random = weight_shapes(config), np.random.default_rng(3)
    tensors: dict[str, list[np.ndarray]] = {}
    for name, place in encoder_places(shapes, (), config).items():
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
        backend.start(number, tokens, len(tokens), SamplingParams(), pool=second_text)
        blocks = range(block, block := block + -(-len(tokens) // backend.info.block_size))
        chunks.append(Chunk(number, 0, len(tokens), list(blocks), sample=True))
    found = []
    for outcome in backend.step(chunks):
        assert isinstance(outcome, Sampled) and outcome.token_id is None
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
        np.testing.assert_allclose(one, other, atol=2e-4)
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
