"""Quantised modules of safetensors as the CPU reads them: integers exactly, floats rounded to BF16."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from tests.models.tiny import TinyModels
from tests.weights.quantized_files import CASES, write_dequantized, write_quantized
from trunkline_server.weights.affine import _E4M3
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize

# These become BF16: floats, and groups whose inputs are in another order.
ROUNDED = {
    "gptq_act_order", "fp8_dynamic", "fp8_static", "fbgemm_fp8", "fp8_blocks", "compressed_fp8_blocks", "fp8_weights",
    "bitsandbytes_4", "bitsandbytes_4_nested",
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_weights_are_what_the_file_encodes(case: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    meant = write_quantized(tiny_model("llama2").folder, tmp_path, case)
    checkpoint = open_checkpoint(tmp_path)
    formats = Counter[str]()
    for name, expected in meant.items():
        tensor = checkpoint.tensor(name)
        formats[tensor.format] += 1
        encoded = checkpoint.encoded(name)
        assert (encoded.name, encoded.format, encoded.shape) == (tensor.name, tensor.format, tensor.shape)
        # Integers: a product and a sum, each rounded once. BF16: half a step of 8 bits.
        tolerance = 2.0**-8 if case in ROUNDED else 1e-6
        np.testing.assert_allclose(dequantize(tensor), expected.numpy(), rtol=tolerance, atol=1e-6, err_msg=name)
    bits = 8 if "8" in case else 4
    assert formats.keys() == {"BF16" if case in ROUNDED else f"AFFINE{bits}"}


@pytest.mark.parametrize(
    ("model", "case"),
    [(model, case) for model in ("phi3", "glm4", "cohere", "deepseek_v2") for case in sorted(CASES)],
)
def test_weights_that_the_file_joins_or_reorders(model: str, case: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    folder = tiny_model(model).folder
    meant = write_quantized(folder, tmp_path / "quantized", case)
    expected = open_checkpoint(write_dequantized(folder, tmp_path / "dequantized", meant))
    found = open_checkpoint(tmp_path / "quantized")
    tolerance = 2.0**-8 if case in ROUNDED else 1e-6
    for name in expected.names():
        wanted = expected.tensor(name)
        if len(wanted.shape) == 2 and ".layers." in name and ".mlp.gate." not in name:
            assert found.parts(name), name
            tensor, encoded = found.tensor(name), found.encoded(name)
            assert (encoded.name, encoded.format, encoded.shape) == (tensor.name, tensor.format, tensor.shape)
            near = max(tolerance, 2.0**-11) if tensor.format == "F16" else tolerance
            np.testing.assert_allclose(dequantize(tensor), dequantize(wanted), near, 1e-6, err_msg=name)


def test_e4m3_has_the_numbers_of_torch() -> None:
    import torch

    codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    np.testing.assert_array_equal(_E4M3, codes.float().numpy())
