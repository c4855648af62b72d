"""The plan of a shard's memory: equal to what its buffers take, and refused with flags that help."""

from __future__ import annotations

import logging
import re
from dataclasses import replace

import pytest
from tests.cpu.tiny_backend import build_tiny
from tests.models.tiny import TinyModels
from trunkline_server.backends.cpu.memory import DEFAULT_POOL_TOKENS, MIN_POOL_TOKENS
from trunkline_server.backends.cpu.memory_plan import MemoryOptions, plan_memory, unlimited
from trunkline_server.backends.registry import BackendOptions
from trunkline_server.errors import BackendUnavailable, DoesNotFit, InvalidArgument
from trunkline_server.library import expected_memory
from trunkline_server.weights.checkpoint import open_checkpoint

SMALL = MemoryOptions(max_step_tokens=64, max_step_sequences=8, max_batch_total_tokens=4096)
# Layers of every kind: plain ones, experts, latents, windows and recurrent ones.
CASES = ("llama3", "qwen2_moe", "deepseek_v2", "gemma3", "lfm2")
FLAG = re.compile(r"--([a-z-]+) (\w+)")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("quantize", "dtype"), [("none", "auto"), ("int8", "auto"), ("none", "f16")])
def test_buffers_take_what_the_plan_says(tiny_model: TinyModels, case: str, quantize: str, dtype: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    options = replace(SMALL, quantize=quantize, kv_cache_dtype=dtype, window_parts="auto")
    given = {name: value for name, value in vars(options).items() if name != "overcommit"}
    info = build_tiny(checkpoint, available_bytes=1 << 30, **given).info
    planned = plan_memory(checkpoint, options, available_bytes=1 << 30)
    # Matrices that the kernels join share the padding to whole tiles, a large part of tiny ones.
    assert planned.need.weight_bytes == pytest.approx(info.weight_bytes, rel=0.06)
    assert planned.buffer_bytes == pytest.approx(info.memory_bytes, rel=0.02)


@pytest.mark.parametrize("case", ["llama3", "gemma3"])
def test_a_refusal_names_flags_with_which_the_model_fits(tiny_model: TinyModels, case: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    needed = unlimited(checkpoint, SMALL).buffer_bytes
    for available in (needed - 1, needed * 2 // 3, needed // 2):
        with pytest.raises(DoesNotFit, match=r"it fits with .*; `--overcommit` starts anyway") as refusal:
            plan_memory(checkpoint, SMALL, available_bytes=available)
        for way in str(refusal.value.hint).split(" or with "):
            names = {"max-batch-total-tokens": int}
            flags = {name.replace("-", "_"): names.get(name, str)(value) for name, value in FLAG.findall(way)}
            assert flags, way
            plan_memory(checkpoint, replace(SMALL, **flags), available_bytes=available)


def test_a_pool_with_a_file_takes_its_memory_only(tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("llama3").folder)
    options = MemoryOptions(kv_memory=1 << 20, max_batch_total_tokens=1 << 20)
    plan = plan_memory(checkpoint, options, available_bytes=1 << 30)
    assert plan.sizes.num_blocks * options.block_size == 1 << 20
    assert plan.pool_bytes == options.kv_memory < (1 << 20) * plan.need.kv_bytes_per_token
    # Without a wish, the size does not depend on the memory.
    assert plan_memory(checkpoint, replace(options, max_batch_total_tokens=None)).sizes.num_blocks == (
        DEFAULT_POOL_TOKENS // options.block_size
    )
    with pytest.raises(BackendUnavailable, match=r"needs \d+ for one layer"):
        build_tiny(checkpoint, block_size=64, kv_memory=1 << 20, max_batch_total_tokens=1 << 20)
    with pytest.raises(InvalidArgument, match="cannot be used with `--speculative-model`"):
        build_tiny(checkpoint, kv_memory=1 << 20, draft=checkpoint)


def test_overcommit_starts_with_a_warning(tiny_model: TinyModels, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = open_checkpoint(tiny_model("llama3").folder)
    with pytest.raises(DoesNotFit, match="`--overcommit` starts anyway"):
        build_tiny(checkpoint, block_size=64, available_bytes=1 << 16)
    backend = build_tiny(
        checkpoint, block_size=64, available_bytes=1 << 16, overcommit=True, max_batch_total_tokens=None
    )
    assert backend.info.num_device_blocks * 64 == MIN_POOL_TOKENS
    assert ("more memory is planned than is available", logging.WARNING) in {
        (record.message, record.levelno) for record in caplog.records
    }
    with pytest.raises(DoesNotFit, match=r"with `--weights-memory`$"):
        build_tiny(checkpoint, available_bytes=1 << 30, overcommit=True, model_memory=1 << 20)


def test_the_estimate_of_a_model_knows_its_settings(tiny_model: TinyModels) -> None:
    folder = tiny_model("llama3").folder
    plain = BackendOptions(max_batch_total_tokens=1 << 16)
    as_it_is = expected_memory(folder, plain)
    assert expected_memory(folder, replace(plain, quantize="int4")) < as_it_is
    assert expected_memory(folder, replace(plain, kv_cache_dtype="int4")) < as_it_is
    assert expected_memory(folder, replace(plain, max_loras=8, max_lora_rank=16)) > as_it_is
    twice = replace(plain, num_shares=2, max_batch_total_tokens=1 << 15)
    assert as_it_is < expected_memory(folder, twice) < 2 * as_it_is
    # Other models may leave the memory, so more than there is counts as it is.
    assert expected_memory(folder, BackendOptions(max_batch_total_tokens=1 << 30)) > 1 << 30
