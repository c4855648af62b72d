"""Quantised checkpoints on the device: weights and products against the f32 weights that they encode."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.cuda.test_loading import rows_of
from tests.models.tiny import TinyModels
from tests.weights.quantized_files import CASES, write_dequantized, write_quantized
from trunkline_server.backends.cuda import loading
from trunkline_server.backends.cuda.kernels.card import Card
from trunkline_server.backends.cuda.kernels.linear import linear
from trunkline_server.backends.cuda.loading import default_dtype, load_weights
from trunkline_server.backends.cuda.weights import DenseWeight
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize

LAYER = "model.layers.0"


@pytest.mark.parametrize(
    ("model", "case"), [*(("llama2", case) for case in CASES), ("phi3", "fp8_blocks"), ("glm4", "awq")]
)
def test_weights_equal_what_the_file_encodes(
    device: str, model: str, case: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    """The files of Phi-3 and GLM-4 join matrices."""
    folder = tiny_model(model).folder
    meant = write_quantized(folder, tmp_path / "quantized", case)
    expected = open_checkpoint(write_dequantized(folder, tmp_path / "dequantized", meant))
    weights = load_weights(open_checkpoint(tmp_path / "quantized"), torch.device(device), torch.float16)
    for part in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.up_proj", "mlp.down_proj"):
        name = f"{LAYER}.{part}.weight"
        assert not isinstance(weights.matrix(name)[0], DenseWeight)
        values = torch.from_numpy(dequantize(expected.tensor(name)))
        torch.testing.assert_close(rows_of(weights, name), values, rtol=1e-6, atol=1e-8, msg=name)
    assert isinstance(weights.matrix("lm_head.weight")[0], DenseWeight)
    query, value = (weights.matrix(f"{LAYER}.self_attn.{one}_proj.weight")[0] for one in "qv")
    # Projections that each reorder columns in their own way cannot be stacked.
    assert (query is value) == (case != "gptq_act_order")


@pytest.mark.parametrize("case", ["fp8_dynamic", "fp8_static", "fbgemm_fp8"])
def test_fp8_is_supported_on_cards_without_fp8_products(
    device: str, tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(loading, "card_of", lambda device: Card((8, 0), 108))
    meant = write_quantized(tiny_model("llama2").folder, tmp_path, case)
    weights = load_weights(open_checkpoint(tmp_path), torch.device(device), torch.bfloat16)
    name = f"{LAYER}.mlp.up_proj.weight"
    matrix, begin, end = weights.matrix(name)
    torch.testing.assert_close(rows_of(weights, name), meant[name], rtol=1e-6, atol=1e-8)
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
