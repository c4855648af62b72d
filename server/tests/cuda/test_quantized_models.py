"""Whole models from quantised checkpoints beside the reference with the weights that they encode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cuda.test_backend import ATOL, PROMPT, build_cuda
from tests.models.tiny import TinyModels
from tests.tiers import full
from tests.weights.gguf_files import write_model
from tests.weights.mxfp4_files import write_mxfp4
from tests.weights.quantized_files import write_dequantized, write_quantized
from trunkline_server.backends.cuda.loading import load_weights
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.weights import DenseWeight
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize

TOKENS = PROMPT[:8]


def logprobs(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(np.array(logits)).double(), -1).numpy()


def test_rounded_activations_stay_close_to_the_encoded_model(
    device: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    model = tiny_model("llama2").folder
    meant = write_quantized(model, tmp_path / "quantized", "fp8_dynamic")
    encoded = open_checkpoint(write_dequantized(model, tmp_path / "dequantized", meant))
    expected, unquantized = (logprobs(ReferenceBackend(one).score(TOKENS)) for one in (encoded, open_checkpoint(model)))
    found = logprobs(build_cuda(open_checkpoint(tmp_path / "quantized"), device, dtype=torch.float16).score(TOKENS))
    assert np.abs(found - expected).mean() < 0.1
    # The unquantised model is a different one.
    assert np.abs(unquantized - expected).mean() > np.abs(found - expected).mean()


@pytest.mark.parametrize(
    ("case", "stored_as"),
    [
        ("llama2", "Q4_1"),
        full("llama2", "gptq_act_order"),
        full("llama2", "fp8_blocks"),
        ("gpt_oss", ""),
        ("gpt_oss", "MXFP4"),
        full("qwen2_moe", "Q8_0"),
        ("qwen2_moe", "Q4_1"),
        ("qwen2_moe", "gptq"),
        full("deepseek_v2", "Q4_0"),
        ("deepseek_v2", "fp8_blocks"),
    ],
)
def test_a_quantised_model_matches_the_reference(
    case: str, stored_as: str, device: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    """Experts stay quantised, and matrices of single heads become dense."""
    model = tiny_model(case)

    def is_stacked(name: str) -> bool:
        return ".experts." in name or "_b_proj" in name or case == "llama2"

    if not stored_as:
        path = write_mxfp4(model, tmp_path)
    elif stored_as[0].isupper():
        path = write_model(model, tmp_path / "m.gguf", stored_as, is_quantized=is_stacked)
    else:
        write_quantized(model.folder, tmp_path, stored_as)
        path = tmp_path
    checkpoint = open_checkpoint(path)
    expected = ReferenceBackend(checkpoint).score(TOKENS)
    # The reference rounds FP8 with its scales, and GPTQ's columns in another order, to bf16.
    limit = 0.05 if stored_as in ("fp8_blocks", "gptq_act_order") else 2e-4
    np.testing.assert_allclose(build_cuda(checkpoint, device).score(TOKENS), expected, atol=max(limit, ATOL))
    weights = load_weights(checkpoint, torch.device(device), torch.float32)
    last = f"model.layers.{checkpoint.config.num_layers - 1}"
    experts = "mlp" if case == "llama2" else "mlp.experts.1"
    for part in ("gate_proj", "up_proj", "down_proj"):
        assert isinstance(weights.matrix(f"{last}.{experts}.{part}.weight")[0], GroupedWeight)
    if case == "deepseek_v2":
        assert isinstance(weights.matrix(f"{last}.self_attn.k_up.1.weight")[0], DenseWeight)


def test_experts_of_different_formats_become_dense(device: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    model, name = tiny_model("qwen2_moe"), "model.layers.1.mlp.experts.0.up_proj"
    path = write_model(
        model, tmp_path / "m.gguf", "Q8_0", is_quantized=lambda name: ".experts." in name and "up_proj" in name
    )
    write_quantized(model.folder, tmp_path, "gptq")
    tensors = load_file(tmp_path / "model.safetensors")
    kept = {part: tensor for part, tensor in tensors.items() if not part.startswith(f"{name}.")}
    save_file(
        kept | {f"{name}.weight": torch.from_numpy(model.weights[f"{name}.weight"])}, tmp_path / "model.safetensors"
    )
    for each in (path, tmp_path):
        checkpoint = open_checkpoint(each)
        weights = load_weights(checkpoint, torch.device(device), torch.float32)
        for expert in range(2):
            wanted = f"model.layers.1.mlp.experts.{expert}.up_proj.weight"
            matrix, begin, end = weights.matrix(wanted)
            assert isinstance(matrix, DenseWeight)
            expected = torch.from_numpy(dequantize(checkpoint.tensor(wanted)))
            torch.testing.assert_close(matrix.values[begin:end].cpu(), expected)
