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

HOPPER = Card((9, 0), 132)


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


@pytest.mark.parametrize(
    ("name", "num_outputs", "num_inputs", "num_splits"),
    [
        ("8B query, key, value", 6144, 4096, 1),
        ("8B output", 4096, 4096, 2),
        ("8B gate, up", 28672, 4096, 1),
        ("8B down", 4096, 14336, 2),
        ("8B head", 128256, 4096, 1),
        ("1B output", 2048, 2048, 3),
        ("135M output", 576, 576, 2),
        ("short", 64, 255, 1),
    ],
)
def test_narrow_weights_are_split_and_wide_ones_are_not(
    name: str, num_outputs: int, num_inputs: int, num_splits: int
) -> None:
    assert ProductPlan.of(num_outputs, num_inputs).num_splits == num_splits, name


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


def test_hopper_has_the_tiles_that_it_is_tuned_for() -> None:
    plan = ProductPlan.of(28672, 4096)
    found = [plan.tiles(num_rows, 2, HOPPER) for num_rows in (1, 32, 64, 8192)]
    assert [(tiles.block_n, tiles.block_t, tiles.block_k, tiles.num_stages) for tiles in found] == [
        (64, 16, 128, 5), (64, 32, 128, 4), (128, 64, 64, 4), (128, 256, 64, 4),
    ]  # fmt: skip


def test_many_rows_are_computed_by_one_program_an_sm() -> None:
    plan = ProductPlan.of(4096, 14336)
    tiles = plan.tiles(8192, 2, HOPPER)
    assert (tiles.block_n, tiles.block_t, tiles.is_parallel) == (128, 256, False), "splits do not shrink tiles"
    assert plan.tiles(200, 2, HOPPER).is_parallel
