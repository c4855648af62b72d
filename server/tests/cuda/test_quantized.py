"""Quantised checkpoints on the device: weights and products against the f32 weights that they encode."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.models.tiny import TinyModels
from tests.weights.quantized_files import CASES, write_dequantized, write_quantized
from trunkline_server.backends.cuda import loading
from trunkline_server.backends.cuda.kernels.card import Card
from trunkline_server.backends.cuda.kernels.grouped import dequantized_rows
from trunkline_server.backends.cuda.kernels.linear import linear
from trunkline_server.backends.cuda.loading import default_dtype, load_weights
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize

LAYER = "model.layers.0"


def elements(matrix: DeviceWeight, begin: int, end: int) -> torch.Tensor:
    """Returns rows of a weight in f32, columns as in the model."""
    if isinstance(matrix, ScaledWeight):
        return (matrix.values[begin:end].float() * matrix.scales[begin:end, None]).cpu()
    assert isinstance(matrix, GroupedWeight)
    rows = torch.arange(begin, end, device=matrix.quants.device)
    found = dequantized_rows(matrix, rows, torch.empty(end - begin, matrix.num_inputs, device=rows.device))
    if matrix.order is None:
        return found.cpu()
    return found[:, matrix.order.long().argsort()].cpu()


@pytest.mark.parametrize("case", CASES)
def test_weights_equal_what_the_file_encodes(device: str, tiny_model: TinyModels, tmp_path: Path, case: str) -> None:
    meant = write_quantized(tiny_model("llama2").folder, tmp_path, case)
    weights = load_weights(open_checkpoint(tmp_path), torch.device(device), torch.float16)
    for projection in ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj"):
        name = f"{LAYER}.{projection}.weight"
        found = elements(*weights.matrix(name))
        torch.testing.assert_close(found, meant[name], rtol=1e-6, atol=1e-8, msg=name)
    assert isinstance(weights.matrix("lm_head.weight")[0], DenseWeight)
    # Projections that each reorder columns in their own way cannot be stacked.
    is_stacked = weights.matrix(f"{LAYER}.self_attn.q_proj.weight")[0].num_outputs == 192
    assert is_stacked == (case != "gptq_act_order")


@pytest.mark.parametrize(("model", "case"), [("phi3", "fp8_blocks"), ("glm4", "awq")])
def test_weights_that_the_file_joins(
    device: str, model: str, case: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    folder = tiny_model(model).folder
    meant = write_quantized(folder, tmp_path / "quantized", case)
    expected = open_checkpoint(write_dequantized(folder, tmp_path / "dequantized", meant))
    weights = load_weights(open_checkpoint(tmp_path / "quantized"), torch.device(device), torch.float16)
    for projection in ("self_attn.q_proj", "self_attn.k_proj", "mlp.gate_proj", "mlp.up_proj"):
        name = f"{LAYER}.{projection}.weight"
        values = torch.from_numpy(dequantize(expected.tensor(name)))
        torch.testing.assert_close(elements(*weights.matrix(name)), values, rtol=1e-6, atol=1e-8, msg=name)


@pytest.mark.parametrize(
    "case", ["gptq_act_order", "awq", "fp8_blocks", "fp8_static", "int8_dynamic", "bitsandbytes_4_nested"]
)
def test_products_are_close_to_those_of_the_encoded_weight(
    device: str, tiny_model: TinyModels, tmp_path: Path, case: str
) -> None:
    meant = write_quantized(tiny_model("llama2").folder, tmp_path, case)
    weights = load_weights(open_checkpoint(tmp_path), torch.device(device), torch.float16)
    name = f"{LAYER}.mlp.up_proj.weight"
    matrix, begin, end = weights.matrix(name)
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(torch.float16)
    found = linear(x.to(device), matrix, out_dtype=torch.float32)[:, begin:end].cpu().double()
    expected = x.double() @ meant[name].double().T
    bound = 0.03 if isinstance(matrix, ScaledWeight) else 1e-3
    assert ((found - expected).norm() / expected.norm()).item() < bound


@pytest.mark.parametrize("case", ["fp8_dynamic", "fp8_static", "fbgemm_fp8"])
def test_fp8_is_supported_on_cards_without_fp8_products(
    device: str, tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(loading, "card_of", lambda device: Card((8, 0), 108))
    meant = write_quantized(tiny_model("llama2").folder, tmp_path, case)
    weights = load_weights(open_checkpoint(tmp_path), torch.device(device), torch.bfloat16)
    name = f"{LAYER}.mlp.up_proj.weight"
    matrix, begin, end = weights.matrix(name)
    torch.testing.assert_close(elements(matrix, begin, end), meant[name], rtol=1e-6, atol=1e-8)
    # Each element is rounded once, and activations are not quantised.
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    found = linear(x.to(device), matrix, out_dtype=torch.float32)[:, begin:end].cpu().double()
    expected = x.double() @ meant[name].bfloat16().double().T
    assert ((found - expected).norm() / expected.norm()).item() < 1e-5


def test_activations_have_the_dtype_of_scales(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("llama2").folder
    for case, dtype in {"awq": torch.float16, "packed_4": torch.bfloat16}.items():
        write_quantized(model, tmp_path / case, case)
        assert default_dtype(open_checkpoint(tmp_path / case)) == dtype
