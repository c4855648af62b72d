"""Whole models from quantised checkpoints beside the reference with the weights that they encode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.cuda.test_backend import PROMPT, build_cuda
from tests.models.tiny import TinyModels
from tests.tiers import full
from tests.weights.gguf_files import write_model
from tests.weights.mxfp4_files import write_mxfp4
from tests.weights.quantized_files import write_dequantized, write_quantized
from trunkline_server.backends.cuda.kernels.grouped import dequantized_rows
from trunkline_server.backends.cuda.loading import load_weights
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.weights import DenseWeight
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.quantize import QuantizedCheckpoint


def logprobs(checkpoint: Checkpoint, device: str | None) -> np.ndarray:
    """Returns log-probabilities of all tokens at all positions. device: None for the reference backend."""
    if device is None:
        logits = ReferenceBackend(checkpoint, max_batch_total_tokens=512, max_step_tokens=64).score(PROMPT[:8])
    else:
        logits = build_cuda(checkpoint, device, dtype=torch.float16).score(PROMPT[:8])
    return log_softmax(logits)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(np.array(logits)).double(), -1).numpy()


@pytest.mark.parametrize(
    ("case", "bound"), [full("gptq_act_order", 0.005), ("fp8_dynamic", 0.1), full("fp8_blocks", 0.005)]
)
def test_a_quantised_checkpoint_equals_its_encoded_model(
    case: str, bound: float, device: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    model = tiny_model("llama2").folder
    meant = write_quantized(model, tmp_path / "quantized", case)
    expected = logprobs(open_checkpoint(write_dequantized(model, tmp_path / "dequantized", meant)), None)
    found = logprobs(open_checkpoint(tmp_path / "quantized"), device)
    # Activations are f16, or have 8 bits.
    assert np.abs(found - expected).mean() < bound
    # The unquantised model is a different one.
    unquantized = logprobs(open_checkpoint(model), None)
    assert np.abs(unquantized - expected).mean() > np.abs(found - expected).mean()


@pytest.mark.parametrize(
    ("case", "stored_as"),
    [
        ("gpt_oss", ""),
        ("gpt_oss", "MXFP4"),
        full("qwen2_moe", "Q8_0"),
        ("qwen2_moe", "Q4_1"),
        ("qwen2_moe", "gptq"),
        full("deepseek_v2", "Q4_0"),
        ("deepseek_v2", "fp8_blocks"),
    ],
)
def test_quantised_experts_stay_quantised_and_heads_become_dense(
    case: str, stored_as: str, device: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    model = tiny_model(case)

    def is_stacked(name: str) -> bool:
        return ".experts." in name or "_b_proj" in name

    if not stored_as:
        path = write_mxfp4(model, tmp_path)
    elif stored_as[0].isupper():
        path = write_model(model, tmp_path / "m.gguf", stored_as, is_quantized=is_stacked)
    else:
        write_quantized(model.folder, tmp_path, stored_as)
        path = tmp_path
    checkpoint, tokens = open_checkpoint(path), PROMPT[:8]
    expected = ReferenceBackend(checkpoint, max_batch_total_tokens=512, max_step_tokens=64).score(tokens)
    # The reference rounds FP8 with its scales to bf16.
    limit = 0.05 if stored_as == "fp8_blocks" else 2e-4
    np.testing.assert_allclose(build_cuda(checkpoint, device).score(tokens), expected, atol=limit)
    weights = load_weights(checkpoint, torch.device(device), torch.float32)
    last = f"model.layers.{checkpoint.config.num_layers - 1}"
    for part in ("gate_proj", "up_proj", "down_proj"):
        assert isinstance(weights.matrix(f"{last}.mlp.experts.1.{part}.weight")[0], GroupedWeight)
    if case == "deepseek_v2":
        assert isinstance(weights.matrix(f"{last}.self_attn.k_up.1.weight")[0], DenseWeight)


@pytest.mark.parametrize(("option", "bound"), [full("int8", 0.005), ("int4", 0.005), ("fp8", 0.2)])
def test_experts_are_quantised_as_other_matrices(
    option: str, bound: float, device: str, tiny_model: TinyModels
) -> None:
    checkpoint = open_checkpoint(tiny_model("qwen2_moe").folder)
    is_fp8 = option == "fp8"
    whole = checkpoint if is_fp8 else QuantizedCheckpoint(checkpoint, option, keeps_heads=True)
    weights = load_weights(whole, torch.device(device), torch.bfloat16, rounds_to_fp8=is_fp8)
    layer = "model.layers.1"
    experts, begin, end = weights.matrix(f"{layer}.mlp.experts.1.up_proj.weight")
    assert isinstance(experts, GroupedWeight) and experts.is_e4m3 == is_fp8
    name = f"{layer}.mlp.experts.1.up_proj.weight"
    rows = torch.arange(begin, end, device=experts.quants.device)
    found = dequantized_rows(experts, rows, torch.empty(len(rows), experts.num_inputs, device=rows.device)).cpu()
    expected = torch.from_numpy(dequantize(whole.tensor(name)))
    if is_fp8:
        assert 0 < (found - expected).abs().max() < 0.07 * expected.abs().max()
    else:
        # The cpu backend has the same numbers.
        assert torch.equal(found, expected)
    changed = weights.matrix(f"{layer}.mlp.shared_expert.up_proj.weight")[0]
    assert isinstance(changed, ScaledWeight if is_fp8 else GroupedWeight)
    # The reference has the same weights, except with FP8.
    backend = build_cuda(whole, device, dtype=torch.float16, rounds_to_fp8=is_fp8)
    assert np.abs(log_softmax(backend.score(PROMPT[:8])) - logprobs(whole, None)).mean() < bound


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


def test_a_gguf_file_equals_its_encoded_model(device: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(tiny_model("llama2"), tmp_path / "m.gguf", "Q4_1"))
    assert np.abs(logprobs(checkpoint, device) - logprobs(checkpoint, None)).mean() < 0.005
