"""`quantization_config` states a supported scheme or is refused by name; parts are checked at the start."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.models.tiny import TinyModels
from tests.weights.quantized_files import CASES, compressed, write_quantized
from trunkline_server.errors import DamagedFile, UnsupportedFormat
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.quantization import (
    Awq,
    EightBits,
    FourBitFloats,
    Gptq,
    PackedIntegers,
    Quantization,
    parse_quantization,
)

PATH = Path("m/config.json")
FLOAT = {"num_bits": 8, "type": "float", "strategy": "channel"}
EXPECTED: dict[str, Quantization] = {
    "gptq": Gptq(4, 32, 1),
    "gptq_act_order": Gptq(4, 32, 0),
    "gptq_8": Gptq(8, 32, 1),
    "awq": Awq(32),
    "packed_4": PackedIntegers(4, 32),
    "packed_8": PackedIntegers(8, 32),
    "packed_4_with_zeros": PackedIntegers(4, 32, is_symmetric=False),
    "packed_8_with_zeros": PackedIntegers(8, 32, is_symmetric=False),
    "fp8_dynamic": EightBits(is_float=True, activations="dynamic"),
    "fp8_static": EightBits(is_float=True, activations="static"),
    "fbgemm_fp8": EightBits(is_float=True, activations="dynamic", input_limit=1200.0),
    "fp8_blocks": EightBits(is_float=True, activations="none", scale_name="weight_scale_inv", block=(24, 32)),
    "compressed_fp8_blocks": EightBits(is_float=True, activations="none", block=(32, 32)),
    "fp8_weights": EightBits(is_float=True, activations="none"),
    "int8_dynamic": EightBits(is_float=False, activations="dynamic"),
    "int8_weights": EightBits(is_float=False, activations="none"),
    "bitsandbytes_8": EightBits(is_float=False, activations="none", scale_name="SCB", scale_divisor=127.0),
    "bitsandbytes_4": FourBitFloats(),
    "bitsandbytes_4_nested": FourBitFloats(),
}


def parse(config: object) -> Quantization | None:
    return parse_quantization(PATH, {"quantization_config": config})


@pytest.mark.parametrize("case", CASES)
def test_every_scheme_is_parsed_from_its_config(case: str) -> None:
    assert parse(CASES[case][0]) == EXPECTED[case]


def test_no_config_is_no_scheme_and_one_group_is_a_row() -> None:
    assert parse_quantization(PATH, {}) is None
    assert parse(None) is None
    assert parse({"quant_method": "gptq", "bits": 4, "group_size": -1}) == Gptq(4, None, 1)
    assert parse({"quant_method": "fp8", "activation_scheme": "static"}) == EXPECTED["fp8_static"]


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"quant_method": "quip"}, "weights quantised by `quip`"),
        (
            {"quant_method": "hqq"},
            "supported methods are awq, bitsandbytes, compressed-tensors, fbgemm_fp8, fp8, gptq, mxfp4",
        ),
        ({"quant_method": "gptq", "bits": 3, "group_size": 128}, "GPTQ of 3 bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "`group_size` 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "checkpoint_format": "marlin"}, "`marlin`"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "AWQ version `gemv`"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "`weight_block_size` `[128, 0]`"),
        ({"quant_method": "fp8", "activation_scheme": "tea"}, "`activation_scheme` `tea`"),
        (compressed("nvfp4-pack-quantized", FLOAT, None), "the format `nvfp4-pack-quantized`"),
        (compressed("float-quantized", FLOAT, {"num_bits": 16}), "`num_bits` `16`"),
        (compressed("float-quantized", FLOAT | {"strategy": "group"}, None), "`strategy` `group`"),
        (
            compressed("pack-quantized", {"num_bits": 4, "type": "int", "strategy": "tensor"}, None),
            "`strategy` `tensor`",
        ),
        (compressed("float-quantized", FLOAT, None) | {"kv_cache_scheme": {"num_bits": 8}}, "`kv_cache_scheme`"),
        (compressed("float-quantized", FLOAT, None) | {"config_groups": {}}, "0 `config_groups`"),
        ({"quant_method": "bitsandbytes"}, "neither 4 nor 8 bits"),
    ],
)
def test_an_unsupported_scheme_is_refused_by_name(config: dict[str, Any], says: str) -> None:
    with pytest.raises(UnsupportedFormat, match=re.escape(says)) as caught:
        parse(config)
    assert "m/config.json" in str(caught.value)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (3, "`quantization_config` is `3`, expected an object"),
        ({}, "`quantization_config.quant_method` is missing"),
        ({"quant_method": "gptq", "bits": "4", "group_size": 128}, "`quantization_config.bits` is `4`"),
        ({"quant_method": "gptq", "bits": True, "group_size": 128}, "`quantization_config.bits` is `True`"),
        (
            {"quant_method": "fp8", "weight_block_size": 128},
            "`quantization_config.weight_block_size` is `128`, expected two",
        ),
        ({"quant_method": "fp8", "weight_block_size": [128, True]}, "is `[128, True]`, expected two whole numbers"),
        (
            {"quant_method": "compressed-tensors", "config_groups": []},
            "`quantization_config.config_groups` is `[]`, expected an object",
        ),
    ],
)
def test_an_impossible_value_is_damage(config: object, says: str) -> None:
    with pytest.raises(DamagedFile, match=re.escape(says)):
        parse(config)


def test_a_quantised_weight_has_parts(tiny_model: TinyModels, tmp_path: Path) -> None:
    write_quantized(tiny_model("llama2").folder, tmp_path, "gptq")
    checkpoint = open_checkpoint(tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    assert set(checkpoint.parts(name)) == {"qweight", "qzeros", "scales", "g_idx"}
    assert not checkpoint.parts("model.norm.weight")
    assert not checkpoint.parts("lm_head.weight")
    with pytest.raises(KeyError):
        checkpoint.parts("model.layers.9.mlp.down_proj.weight")
