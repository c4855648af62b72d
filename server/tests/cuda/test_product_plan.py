"""Plans of products: the weight's shape alone fixes the bits."""

from __future__ import annotations

import itertools
import random

import pytest
from tests.tiers import draw_seed
from trunkline_server.backends.cuda.kernels.card import SHARED_KIB, Card
from trunkline_server.backends.cuda.kernels.product_plan import (
    MAX_SPLITS,
    MIN_SPLIT_ELEMENTS,
    SPLIT_UNIT,
    ProductPlan,
)


def test_splits_cover_every_input_once_and_begin_at_whole_units() -> None:
    seed = draw_seed()
    rng = random.Random(seed)
    for _ in range(300):
        num_outputs, num_inputs = rng.randint(1, 40_000), rng.randint(1, 40_000)
        plan = ProductPlan.of(num_outputs, num_inputs)
        splits = plan.splits()
        where = f"seed {seed}, [{num_outputs}, {num_inputs}]: {splits}"
        assert len(splits) == plan.num_splits <= MAX_SPLITS, where
        assert splits[0][0] == 0, where
        assert splits[-1][1] == num_inputs, where
        assert all(a[1] == b[0] for a, b in itertools.pairwise(splits)), where
        assert all(begin < end and begin % SPLIT_UNIT == 0 for begin, end in splits), where
        assert plan.num_splits == 1 or plan.split_elements >= MIN_SPLIT_ELEMENTS, where


def test_narrow_weights_are_split_and_wide_ones_are_not() -> None:
    """These numbers fix the bits of models: the matrices of Llama-3-8B, Llama-3.2-1B and SmolLM2-135M."""
    expected = {
        (6144, 4096): 1, (4096, 4096): 2, (28672, 4096): 1, (4096, 14336): 2, (128256, 4096): 1, (2048, 2048): 3,
        (576, 576): 2, (64, 255): 1,
    }  # fmt: skip
    assert {shape: ProductPlan.of(*shape).num_splits for shape in expected} == expected


@pytest.mark.parametrize("capability", SHARED_KIB)
@pytest.mark.parametrize("num_rows", [1, 16, 17, 33, 64, 65, 200, 512, 2048, 8192])
@pytest.mark.parametrize("element_bytes", [1, 2])
def test_tiles_fit_a_card_and_cover_whole_instructions(
    num_rows: int, element_bytes: int, capability: tuple[int, int]
) -> None:
    card = Card(capability, 100)
    for shape in ((6144, 4096), (4096, 14336), (28672, 4096), (576, 576)):
        tiles = ProductPlan.of(*shape).tiles(num_rows, element_bytes, card)
        assert tiles.block_n % 64 == 0  # rows of a wgmma instruction
        assert tiles.block_n // 64 * 4 >= tiles.num_warps  # no instruction is computed twice
        assert SPLIT_UNIT % tiles.block_k == 0
        assert element_bytes > 1 or tiles.block_k == SPLIT_UNIT, "the bits of e4m3 depend on it"
        # Operands of mma.sync are in registers.
        num_blocks = tiles.num_stages if card.products_are_async else tiles.num_stages - 1
        block_bytes = (tiles.block_n + tiles.block_t) * tiles.block_k * element_bytes
        assert 1 < num_blocks <= 5
        assert num_blocks * block_bytes <= (card.half_shared_bytes if num_rows <= 64 else card.shared_bytes)
        if num_rows <= 64:
            assert tiles.block_t >= num_rows, "the weight is read once"
            assert tiles.is_parallel
