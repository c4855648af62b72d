"""The arithmetic of `gpu.roofline`: rounded tiles, waves of programs, bytes in flight, positions that are seen."""

from __future__ import annotations

import pytest
from gpu import roofline


def test_a_product_takes_as_long_as_its_waves_and_tiles() -> None:
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
    work = roofline.product((128 * 132, 200, 8192), (128, 256, 64), 4, (1, False), 2)
    assert work.limit_s == work.operations / roofline.PRODUCT_RATE < one_wave


def test_attention_counts_what_its_kernel_computes() -> None:
    heads, chunks = (32, 8, 128), [(1, 1024), (4096, 8192)]
    split = roofline.split_attention(chunks, heads, 64, 264)
    assert (split.num_bytes, split.operations) == (4 * 1024 * 8 * 128, 4 * 1024 * 32 * 128)
    whole = roofline.whole_attention(chunks, heads, 128)
    seen = 4096 * 4096 + 4096 * 4097 / 2
    assert (whole.num_bytes, whole.operations) == (4 * 8192 * 8 * 128, 4 * 128 * 32 * seen)
    # Tiles on the diagonal compute what their rows do not see.
    assert whole.seconds > whole.operations / roofline.PRODUCT_RATE
