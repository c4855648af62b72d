"""Division of memory between blocks and window parts."""

from __future__ import annotations

import dataclasses

import pytest
from trunkline_server.backends.cpu.window_sizes import MAX_BLOCKS, PoolSizes, WindowNeed

# Mistral 7B v0.1: all layers have a window.
MISTRAL = WindowNeed(
    base_bytes=0, window_bytes=32, window_size=4096, block_size=64, max_positions=32768, max_step_tokens=256,
    max_step_sequences=64,
)  # fmt: skip
GEMMA2 = dataclasses.replace(MISTRAL, base_bytes=13, window_bytes=13, max_positions=8192)
GEMMA3 = dataclasses.replace(MISTRAL, base_bytes=5, window_bytes=29, window_size=1024)


def test_if_all_layers_have_a_window_all_memory_is_window_parts() -> None:
    assert MISTRAL.divide(2048) == PoolSizes(num_blocks=2048 + 64 * 512, num_window_parts=2048)
    long = dataclasses.replace(MISTRAL, max_positions=MAX_BLOCKS * 64)
    assert long.divide(2048).num_blocks == MAX_BLOCKS


@pytest.mark.parametrize("need", [GEMMA2, GEMMA3])
@pytest.mark.parametrize("num_blocks", [100, 500, 2048, 9000, 100_000])
def test_more_blocks_fit_in_the_same_memory(need: WindowNeed, num_blocks: int) -> None:
    sizes = need.divide(num_blocks)
    if sizes.num_window_parts is None:
        assert sizes.num_blocks == num_blocks <= 4 * need.parts_of_one
        return
    assert sizes.num_window_parts >= need.parts_of_one
    assert sizes.num_blocks > num_blocks
    taken = sizes.num_blocks * need.base_bytes + sizes.num_window_parts * need.window_bytes
    budget = num_blocks * (need.base_bytes + need.window_bytes)
    assert budget - need.base_bytes < taken <= budget


def test_all_sequences_have_their_window_if_it_fits_half_of_the_memory() -> None:
    sizes = GEMMA3.divide(8192)
    assert sizes.num_window_parts is not None
    assert sizes.num_window_parts >= GEMMA3.parts_of_all == 64 * 19 + 4


def test_blocks_stay_in_one_piece_if_two_save_nothing() -> None:
    assert MISTRAL.divide(MISTRAL.parts_of_one) == PoolSizes(num_blocks=MISTRAL.parts_of_one)
    assert MISTRAL.divide(MISTRAL.parts_of_one + 1).num_window_parts == MISTRAL.parts_of_one + 1
    as_wide_as_long = dataclasses.replace(MISTRAL, max_positions=4096)
    assert as_wide_as_long.divide(2048) == PoolSizes(num_blocks=2048)
