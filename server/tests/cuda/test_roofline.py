"""The arithmetic of `gpu.roofline`: rounded tiles, waves of programs, bytes in flight, positions that are seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def roofline(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmark"))
    from gpu import roofline

    return roofline


def test_a_product_takes_as_long_as_its_waves_and_tiles(roofline: Any) -> None:
    def seconds(outputs: int, rows: int, tile: tuple[int, int]) -> float:
        found: float = roofline.product((outputs, rows, 8192), (*tile, 64), 4, (1, False), 2).seconds
        return found

    one_wave = seconds(128 * 132, 256, (128, 256))
    # A single tile more takes a program's time, and a row more another wave.
    assert seconds(128 * 133, 256, (128, 256)) == one_wave + 132 * 2 * 128 * 256 * 8192 / roofline.PRODUCT_RATE
    assert seconds(128 * 132, 257, (128, 256)) == pytest.approx(2 * one_wave)
    # A padded row costs as much as a row, and small tiles read the cache more often.
    assert seconds(128 * 132, 200, (128, 256)) == one_wave
    assert seconds(128 * 132, 256, (128, 128)) == pytest.approx(one_wave * 4 / 3, rel=0.01)
    assert one_wave == 128 * 132 * 256 * 8192 * 2 * (1 / 128 + 1 / 256) / roofline.CACHE_RATE
    # A program that adds splits keeps the sum so far in the cache.
    split = roofline.product((128 * 132, 256, 8192), (128, 256, 64), 4, (2, False), 2).seconds
    assert split == pytest.approx(one_wave + 8 * 132 * 128 * 256 / roofline.CACHE_RATE)
    work = roofline.product((128 * 132, 200, 8192), (128, 256, 64), 4, (1, False), 2)
    assert work.limit_s == work.operations / roofline.PRODUCT_RATE < one_wave


def test_few_programs_do_not_saturate_the_memory(roofline: Any) -> None:
    shape, tile = (64 * 24, 1, 14336), (64, 16, 128)
    whole, split = (roofline.product(shape, tile, 5, (splits, True), 2) for splits in (1, 4))
    assert whole.num_bytes == split.num_bytes == 2 * (64 * 24 * 14336 + 14336 + 64 * 24)
    assert whole.limit_s == whole.num_bytes / roofline.MEMORY_RATE
    in_flight = 24 * 4 * 64 * 128 * 2
    assert whole.seconds == pytest.approx(whole.limit_s * roofline.BYTES_IN_FLIGHT / in_flight)
    assert split.seconds == pytest.approx(split.limit_s + 8 * 4 * 64 * 24 / roofline.CACHE_RATE)


def test_attention_counts_what_its_kernel_computes(roofline: Any) -> None:
    heads, chunks = (32, 8, 128), [(1, 1024), (4096, 8192)]
    split = roofline.split_attention(chunks, heads, 64, 264)
    assert (split.num_bytes, split.operations) == (4 * 1024 * 8 * 128, 4 * 1024 * 32 * 128)
    whole = roofline.whole_attention(chunks, heads, 128)
    seen = 4096 * 4096 + 4096 * 4097 / 2
    assert (whole.num_bytes, whole.operations) == (4 * 8192 * 8 * 128, 4 * 128 * 32 * seen)
    # Tiles on the diagonal compute what their rows do not see.
    assert whole.seconds > whole.operations / roofline.PRODUCT_RATE


def test_launches_of_two_layers_are_scaled(roofline: Any) -> None:
    assert roofline.of_model({"norm": 4, "first norm": 1, "product": 2}, 32) == {
        "norm": 64, "first norm": 1, "product": 32,
    }  # fmt: skip
