"""Division of the device's memory. A model that does not fit is refused with the numbers."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.cuda.test_runner import CapturingDevice
from tests.models.tiny import TinyModels
from trunkline_server.backends import registry
from trunkline_server.backends.cuda import build as builder
from trunkline_server.backends.cuda.memory import DeviceMemory, num_pool_blocks
from trunkline_server.errors import BackendUnavailable, DoesNotFit
from trunkline_server.weights.checkpoint import open_checkpoint

GIB = 1 << 30


def memory(free: int = 20 * GIB) -> DeviceMemory:
    return DeviceMemory(total=24 * GIB, free=free, weights=4 * GIB, steps=2 * GIB)


def test_the_pool_takes_what_weights_steps_and_reserve_leave() -> None:
    one = memory()
    assert one.reserve == 768 << 20
    num_blocks = num_pool_blocks(one, bytes_per_block=1 << 20, block_size=64, wanted_tokens=None)
    assert num_blocks == (18 << 10) - 768
    assert DeviceMemory(total=140 * GIB, free=GIB, weights=0, steps=0).reserve == int(140 * GIB * 0.02)


def test_a_requested_size_is_met_in_whole_blocks_or_refused_with_numbers() -> None:
    assert num_pool_blocks(memory(), bytes_per_block=1 << 20, block_size=64, wanted_tokens=65) == 2
    with pytest.raises(DoesNotFit) as raised:
        num_pool_blocks(memory(4 * GIB), bytes_per_block=1 << 20, block_size=64, wanted_tokens=1 << 20)
    assert str(raised.value) == (
        "a KV pool of 1048576 tokens takes 16384 MiB, but the device has 24576 MiB, of which 4096 MiB are free with "
        "4096 MiB of weights loaded, 2048 MiB are for steps and 768 MiB in reserve: 1280 MiB are left; hint: lower "
        "`--max-batch-total-tokens` to 81920, or choose a smaller `--kv-cache-dtype`"
    )


def test_a_pool_too_small_to_serve_is_refused() -> None:
    with pytest.raises(DoesNotFit, match=r"the smallest KV pool \(512 tokens\) takes 8 MiB, but .* 0 MiB are left"):
        num_pool_blocks(memory(2 * GIB), bytes_per_block=1 << 20, block_size=64, wanted_tokens=None)


def divided(monkeypatch: pytest.MonkeyPatch, tiny_model: TinyModels, **options: Any) -> DeviceMemory:
    """Returns the memory that a build divides."""
    asked: list[DeviceMemory] = []

    def refuse(one: DeviceMemory, **_: object) -> int:
        asked.append(one)
        raise DoesNotFit("the memory was divided")

    monkeypatch.setattr(builder, "num_pool_blocks", refuse)
    checkpoint = open_checkpoint(tiny_model("qwen2_shallow").folder)
    with pytest.raises(DoesNotFit, match="the memory was divided"):
        builder.build(checkpoint, device=CapturingDevice(), **options)
    return asked[0]


def test_launched_steps_have_memory_beside_that_of_captured_ones(
    tiny_model: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    def steps(num_rows: int, *, captures: bool) -> int:
        return divided(monkeypatch, tiny_model, captures=captures, max_step_tokens=num_rows).steps

    monkeypatch.setattr(builder, "GRAPH_BYTES", 0)
    launched, both = (steps(8192, captures=captures) - steps(4096, captures=captures) for captures in (False, True))
    assert both == 2 * launched > 0


def test_slots_for_adapters_are_planned(tiny_model: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    one, three, larger = (
        divided(monkeypatch, tiny_model, captures=False, max_loras=number, max_lora_rank=rank)
        for number, rank in ((1, 10), (3, 16), (3, 64))
    )
    assert three.adapters == 3 * one.adapters > 0, "ranks are padded"
    # The gains of DoRA do not depend on the rank.
    assert larger.adapters > 3.7 * three.adapters and larger.steps > three.steps
    assert three.left == three.free - three.steps - three.adapters - three.reserve
    none = divided(monkeypatch, tiny_model, captures=False)
    assert none.adapters == 0 and none.steps < three.steps
    with pytest.raises(
        DoesNotFit, match=r"2048 MiB are for steps, 20480 MiB for adapters and .*; hint: lower `--max-l"
    ):
        num_pool_blocks(
            replace(memory(), adapters=20 * GIB), bytes_per_block=1 << 20, block_size=64, wanted_tokens=None
        )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "INTERPRETED", SimpleNamespace(value=False))
    monkeypatch.setattr(builder.torch.cuda, "is_available", lambda: False)
    with pytest.raises(BackendUnavailable, match=r"finds no NVIDIA GPU .*; hint: .*nvidia-smi"):
        builder.find_device()


def test_compiled_kernels_are_cached_beside_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    monkeypatch.setattr(builder, "build", lambda checkpoint, **options: asked.update(options))
    options = registry.BackendOptions(weights_cache=tmp_path, numerics="fast", max_step_tokens=128)
    checkpoint: Any = SimpleNamespace(quantization=None, config=SimpleNamespace(recurrent=None))
    registry.build("cuda", checkpoint, options)
    assert os.environ["TRITON_CACHE_DIR"] == str(tmp_path / "triton")
    assert (asked["numerics"], asked["max_step_tokens"]) == ("fast", 128)
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    registry.build("cuda", checkpoint, options)
    assert os.environ["TRITON_CACHE_DIR"] == "elsewhere"
