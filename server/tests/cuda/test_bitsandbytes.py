"""Files that bitsandbytes has written, and matrices that are quantised as it does, beside the package's own numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cuda.test_loading import LAYER, rows_of
from tests.models.tiny import TinyModels
from tests.tiers import matrix
from tests.weights.quantized_files import CASES, Made, write_quantized
from trunkline_server.backends.cuda import loading
from trunkline_server.backends.cuda.loading import load_weights
from trunkline_server.backends.cuda.quantized.four_bits import TABLES, find_quantizer, quantized_blocks
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.weights import DenseWeight
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize

package = pytest.importorskip("bitsandbytes.functional", reason="bitsandbytes is not installed")


def four_bits(weight: torch.Tensor, kind: str, *, is_nested: bool, block: int) -> Made:
    codes, state = package.quantize_4bit(weight, blocksize=block, compress_statistics=is_nested, quant_type=kind)
    parts = {f"weight.{suffix}": part for suffix, part in state.as_dict(packed=True).items()}
    return {"weight": codes, **parts}, package.dequantize_4bit(codes, state)


def eight_bits(weight: torch.Tensor) -> Made:
    numbers, peaks, _ = package.int8_vectorwise_quant(weight.half())
    return {"weight": numbers, "SCB": peaks}, package.int8_vectorwise_dequant(numbers, peaks)


@pytest.mark.parametrize(("kind", "is_nested", "block"), matrix(("nf4", "fp4"), (True, False), (64, 32)))
def test_four_bits_are_those_of_the_package(
    kind: str, is_nested: bool, block: int, tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}
    monkeypatch.setitem(CASES, "made", (config, lambda one: four_bits(one, kind, is_nested=is_nested, block=block)))
    meant = write_quantized(tiny_model("llama_wide").folder, tmp_path, "made")
    checkpoint = open_checkpoint(tmp_path)
    weights = load_weights(checkpoint, torch.device("cpu"), torch.bfloat16)
    for name, expected in meant.items():
        # The package multiplies in f32 and rounds to the dtype of activations.
        rounded = torch.from_numpy(dequantize(checkpoint.tensor(name)))
        assert torch.equal(rounded, expected.bfloat16().float()), name
        if name.startswith(LAYER):
            assert isinstance(weights.matrix(name)[0], GroupedWeight)
            assert torch.equal(rows_of(weights, name), expected), name


def test_eight_bits_are_those_of_the_package(
    tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package multiplies by 1 / 127 after the number, where the file's scale is divided before: a rounding more."""
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    monkeypatch.setitem(CASES, "made", (config, eight_bits))
    meant = write_quantized(tiny_model("llama_wide").folder, tmp_path, "made")
    checkpoint = open_checkpoint(tmp_path)
    for name, expected in meant.items():
        found = dequantize(checkpoint.tensor(name))
        np.testing.assert_allclose(found, expected.numpy(), rtol=2.0**-22, atol=0, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", TABLES)
def test_own_code_quantises_as_the_package(kind: str, dtype: torch.dtype) -> None:
    name, by_package = find_quantizer()
    assert name == f"bitsandbytes {pytest.importorskip('bitsandbytes').__version__}"
    values = torch.randn(96, 256, generator=torch.Generator().manual_seed(3)).to(dtype)
    # A block of zeros, one number only, and numbers that lie between two codes.
    values[0, :64], values[1, :64], values[1, 5] = 0.0, 0.0, -3.0
    table = torch.tensor(TABLES[kind]).sort().values
    values[2, :15], values[2, 15:64] = (table[1:] + table[:-1]).to(dtype) / 2, 1.0
    assert torch.equal(package.get_4bit_type(kind, device="cpu"), torch.tensor(TABLES[kind]))
    for found, expected in zip(quantized_blocks(values, kind), by_package(values, kind), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize(("case", "kind", "by"), [("llama2", "nf4", "package"), ("qwen2_moe", "fp4", "own")])
def test_floats_are_quantised_while_they_are_loaded(
    case: str, kind: str, by: str, device: str, tiny_model: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by == "own":
        monkeypatch.setattr(loading, "find_quantizer", lambda: ("own code", quantized_blocks))
    checkpoint = open_checkpoint(tiny_model(case).folder)
    weights = load_weights(checkpoint, torch.device(device), torch.bfloat16, rounds_to=kind)
    mlp = "mlp.up_proj" if case == "llama2" else "mlp.experts.1.up_proj"
    for part in ("self_attn.k_proj", mlp):
        name = f"{LAYER}.{part}.weight"
        assert isinstance(weights.matrix(name)[0], GroupedWeight)
        values = torch.from_numpy(dequantize(checkpoint.tensor(name))).bfloat16()
        expected = package.dequantize_4bit(*package.quantize_4bit(values.float(), blocksize=64, quant_type=kind))
        assert torch.equal(rows_of(weights, name), expected), name
    # Rows that are no whole blocks, and the head, stay as they are.
    for name in (f"{LAYER}.mlp.down_proj.weight", "lm_head.weight")[case != "llama2" :]:
        assert isinstance(weights.matrix(name)[0], DenseWeight)
