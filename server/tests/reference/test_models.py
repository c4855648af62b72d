"""The reference backend against transformers' results for the same models (see `tests/models/record.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from tests.models.compared import GGUF_CASES
from tests.models.tiny import CASES, RECORDED, TinyModel, TinyModels
from tests.plans import new_chunk, new_start
from tests.running import all_sampled
from tests.tiers import IS_FULL
from tests.weights.gguf_files import write_model
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import open_checkpoint

TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def recorded() -> dict[str, NDArray[Any]]:
    return dict(np.load(RECORDED / "logits.npz"))


def generate_greedily(backend: ReferenceBackend, prompt: list[int], num_tokens: int) -> list[int]:
    """Generates with one sequence, whole prompt first, through the paged path."""
    block_size = backend.info.block_size
    backend.start(new_start(1, prompt, len(prompt), sampling_params()))
    output: list[int] = []
    first, num_blocks = 0, 0
    while len(output) < num_tokens:
        end = len(prompt) + len(output)
        needed = -(-end // block_size)
        chunk = new_chunk(1, first, end - first, list(range(num_blocks, needed)), True)
        (sampled,) = all_sampled(backend.step([chunk]))
        output.append(sampled.token_id)
        first, num_blocks = end, needed
    backend.end(1)
    return output


@pytest.mark.parametrize("case", CASES)
def test_tiny_model_agrees_with_transformers(
    case: str, tiny_model: TinyModels, recorded: dict[str, NDArray[Any]]
) -> None:
    expected = recorded[f"{case} logits"]
    assert np.abs(expected).max() > 1.0, "the model is too flat to tell right from wrong"
    found = ReferenceBackend(open_checkpoint(tiny_model(case).folder)).score(recorded["prompt"].tolist())
    picked = np.take_along_axis(found, recorded["picked"], 1)
    np.testing.assert_allclose(picked, expected, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("case", CASES)
def test_tiny_model_generates_the_tokens_of_transformers(
    case: str, tiny_model: TinyModels, recorded: dict[str, NDArray[Any]]
) -> None:
    expected = recorded[f"{case} greedy"].tolist()
    assert len(set(expected)) > 2, "the output is too monotonous to tell right from wrong"
    backend, count = ReferenceBackend(open_checkpoint(tiny_model(case).folder)), len(expected) if IS_FULL else 12
    assert generate_greedily(backend, recorded["prompt"][:21].tolist(), count) == expected[:count]


@pytest.mark.parametrize("case", GGUF_CASES)
def test_tiny_model_from_gguf_agrees_with_transformers(
    case: str, tiny_model: TinyModels, recorded: dict[str, NDArray[Any]], tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(write_model(tiny_model(case), tmp_path / "model.gguf"))
    found = ReferenceBackend(checkpoint).score(recorded["prompt"][:200].tolist())
    picked = np.take_along_axis(found, recorded["picked"][:200], 1)
    np.testing.assert_allclose(picked, recorded[f"{case} logits"][:200], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("architecture", "case", "spelling"),
    [
        ("internlm2", "llama2", {}),
        ("internlm2", "llama3", {}),
        ("internlm3", "llama_biases", {"qkv_bias": True, "bias": True}),
        ("exaone", "llama2", {"num_layers": 3, "layer_norm_epsilon": 1e-6, "activation_function": "silu"}),
    ],
)
def test_a_model_of_other_names_is_llama(
    architecture: str, case: str, spelling: dict[str, Any], tiny_model: TinyModels, tmp_path: Path
) -> None:
    """transformers has no code of its own for these."""
    llama = tiny_model(case)
    other = TinyModel(case)
    renamed = {"num_hidden_layers", "rms_norm_eps", "hidden_act"} if architecture == "exaone" else set()
    other.config = {key: value for key, value in llama.config.items() if key not in renamed}
    other.config |= {"model_type": architecture, **spelling}
    folder = other.save(tmp_path / "other")
    assert other.stored_weights.keys() != llama.stored_weights.keys() or architecture == "internlm3"
    prompt = list(range(50))
    logits = ReferenceBackend(open_checkpoint(folder)).score(prompt)
    np.testing.assert_array_equal(logits, ReferenceBackend(open_checkpoint(llama.folder)).score(prompt))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_tiny_model_in_half_precision_is_read_exactly(
    dtype: torch.dtype, tiny_model: TinyModels, recorded: dict[str, NDArray[Any]], tmp_path: Path
) -> None:
    model, prompt, logits = tiny_model("qwen2"), recorded["prompt"][:50].tolist(), []
    half = {name: torch.from_numpy(weight).to(dtype) for name, weight in model.weights.items()}
    for name, weights in (("half", half), ("wide", {name: weight.float() for name, weight in half.items()})):
        folder = model.save(tmp_path / name)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        logits.append(ReferenceBackend(open_checkpoint(folder)).score(prompt))
    np.testing.assert_array_equal(*logits)
    assert (logits[0] != ReferenceBackend(open_checkpoint(model.folder)).score(prompt)).any()


def test_embedded_model_agrees_with_transformers(embedded_gguf: Path) -> None:
    expected = np.load(RECORDED / "embedded.npz")
    assert len(expected["token_ids"]) > 250
    token_ids = expected["token_ids"][: None if IS_FULL else 80]
    logits = ReferenceBackend(open_checkpoint(embedded_gguf)).score(token_ids.tolist())
    logprobs = torch.from_numpy(logits).double().log_softmax(-1).numpy()
    following = np.take_along_axis(logprobs[:-1], token_ids[1:, None], 1)[:, 0]
    assert np.abs(following - expected["logprobs"][: len(following)]).max() <= TOLERANCE
    np.testing.assert_array_equal(logprobs.argmax(-1), expected["likeliest"][: len(token_ids)])
