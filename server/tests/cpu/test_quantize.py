"""`--quantize`: near the unquantised model, in less memory, mapped from the cache by the second start."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cpu.test_cpu_backend import PROMPT
from tests.cpu.test_weight_cache import messages, model, same_bits, start
from tests.cpu.tiny_backend import build_tiny, log_softmax
from tests.models.tiny import TinyModels
from tests.weights.quantized_files import write_dequantized, write_quantized
from trunkline_server.backends import registry
from trunkline_server.backends.cpu.memory import MIN_POOL_TOKENS, memory_need
from trunkline_server.backends.registry import BackendOptions
from trunkline_server.errors import DamagedFile, DoesNotFit, InvalidArgument
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.quantize import QuantizedCheckpoint, bits_of

__all__ = ["model"]
LIMITS: Any = {"max_step_tokens": 64, "max_step_sequences": 8}


@pytest.mark.parametrize("quantize", ["int8", "int4", "eetq"])
def test_a_quantised_model_needs_less_memory_and_says_almost_the_same(model: Path, quantize: str) -> None:
    checkpoint = open_checkpoint(model)
    plain, small = build_tiny(checkpoint), build_tiny(checkpoint, quantize=quantize)
    assert small.info.weight_bytes < plain.info.weight_bytes * (8.5 + 1) / 32
    assert small.info.numeric_fingerprint != plain.info.numeric_fingerprint
    # The weights of this model are random, which is the worst case for 4 bits.
    limit = 0.6 if quantize == "int4" else 0.05
    assert 0 < np.abs(log_softmax(small.score(PROMPT)) - log_softmax(plain.score(PROMPT))).mean() < limit


@pytest.mark.parametrize(("option", "bits"), [("fp8", "int8"), ("bitsandbytes-nf4", "int4")])
def test_every_backend_quantises_to_the_same_numbers(
    model: Path, option: str, bits: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    checkpoint = open_checkpoint(model)
    packed = build_tiny(checkpoint, quantize=option)
    assert f"`--quantize {option}` is {bits} on this backend" in caplog.text
    assert np.array_equal(packed.score(PROMPT), build_tiny(QuantizedCheckpoint(checkpoint, bits)).score(PROMPT))
    options = BackendOptions(quantize=option, max_batch_total_tokens=512, max_step_tokens=64, kv_cache_dtype="int8")
    reference = registry.build("reference", checkpoint, options)
    plain = registry.build("reference", checkpoint, replace(options, quantize="none"))
    assert reference.info.numeric_fingerprint != plain.info.numeric_fingerprint
    found, expected = (log_softmax(backend.score(PROMPT)) for backend in (packed, reference))
    assert 0 < np.abs(found - expected).mean() < 0.02 < np.abs(expected - log_softmax(plain.score(PROMPT))).mean()


@pytest.mark.parametrize("case", ["fp8_blocks", "bitsandbytes_4"])
def test_checkpoints_that_are_decoded_are_quantised(case: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    folder = tiny_model("llama2").folder
    meant = write_quantized(folder, tmp_path / "quantized", case)
    checkpoint = open_checkpoint(tmp_path / "quantized")
    plain, small = (build_tiny(checkpoint, quantize=bits, block_size=64, **LIMITS) for bits in ("none", "int8"))
    assert small.info.weight_bytes < plain.info.weight_bytes * 0.6
    for bits, info in (("none", plain.info), ("int8", small.info)):
        need = memory_need(checkpoint, bits, kv_dtype="int8", **LIMITS)
        assert need.weight_bytes == pytest.approx(info.weight_bytes, rel=0.1)
        expected = need.bytes_with(info.num_device_blocks * info.block_size)
        assert expected == pytest.approx(info.memory_bytes, rel=0.1)
    assert 0 < np.abs(log_softmax(small.score(PROMPT)) - log_softmax(plain.score(PROMPT))).mean() < 0.05
    # The same numbers in one tensor each.
    dequantized = open_checkpoint(write_dequantized(folder, tmp_path / "dequantized", meant))
    other = build_tiny(dequantized, quantize="int8").score(PROMPT)
    assert np.abs(log_softmax(small.score(PROMPT)) - log_softmax(other)).mean() < 0.05


def test_a_model_that_fits_only_when_it_is_quantised(tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("llama2").folder)
    sizes = {
        bits: memory_need(checkpoint, bits, kv_dtype="int8", block_size=16, **LIMITS)
        for bits in ("none", "int8", "int4")
    }
    weights = {bits: need.weight_bytes for bits, need in sizes.items()}
    assert weights["int4"] < weights["int8"] < weights["none"] * 0.3
    smallest = sizes["none"].scratch_bytes + MIN_POOL_TOKENS * sizes["none"].kv_bytes_per_token
    options = {"max_batch_total_tokens": MIN_POOL_TOKENS, "available_bytes": weights["int8"] + smallest, **LIMITS}
    build_tiny(checkpoint, quantize="int8", **options)
    with pytest.raises(DoesNotFit):
        build_tiny(checkpoint, **options)


def test_the_second_start_maps_what_the_first_quantised(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first = start(model, tmp_path, quantize="int4")
    assert messages(caplog) == ["weights packed", "packed weights cached"]
    second = start(model, tmp_path, quantize="int4")
    assert messages(caplog) == ["weights mapped"]
    assert same_bits(first, second)
    # Each kind has a file of its own.
    start(model, tmp_path, quantize="int8")
    start(model, tmp_path)
    assert messages(caplog) == ["weights packed", "packed weights cached"] * 2


@pytest.mark.parametrize("case", ["qwen2_moe", "deepseek_v2"])
def test_experts_are_quantised_and_their_router_is_not(case: str, tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    plain, small = build_tiny(checkpoint), build_tiny(checkpoint, quantize="int8")
    assert small.info.weight_bytes < plain.info.weight_bytes / 2
    assert np.abs(log_softmax(small.score(PROMPT)) - log_softmax(plain.score(PROMPT))).mean() < 0.05


def test_options_that_contradict_the_checkpoint_are_refused(
    tiny_model: TinyModels, embedded_gguf: Path, tmp_path: Path
) -> None:
    plain = open_checkpoint(tiny_model("llama2").folder)
    write_quantized(tiny_model("llama2").folder, tmp_path, "gptq")
    gptq = open_checkpoint(tmp_path)
    assert bits_of("gptq", gptq) == "none"
    for option, checkpoint, message in [
        ("awq", gptq, "is not quantised with it"),
        ("gptq", plain, "is not quantised with it"),
        ("int4", gptq, "is quantised already"),
        ("int4", open_checkpoint(embedded_gguf), "is quantised already"),
    ]:
        with pytest.raises(InvalidArgument, match=message):
            build_tiny(checkpoint, quantize=option)


def test_a_weight_that_is_not_finite_is_named(tiny_model: TinyModels, tmp_path: Path) -> None:
    import shutil

    copy = Path(shutil.copytree(tiny_model("llama2").folder, tmp_path / "m"))
    path = copy / "model.safetensors"
    stored = bytearray(path.read_bytes())
    header_bytes = int.from_bytes(stored[:8], "little")
    begin, end = json.loads(stored[8 : 8 + header_bytes])["model.layers.0.mlp.up_proj.weight"]["data_offsets"]
    stored[8 + header_bytes + begin : 8 + header_bytes + end] = b"\xff" * (end - begin)
    path.write_bytes(stored)
    with pytest.raises(DamagedFile, match=r"weight `model\.layers\.0\.mlp\.up_proj\.weight`: a number is not"):
        build_tiny(open_checkpoint(copy), quantize="int8")
