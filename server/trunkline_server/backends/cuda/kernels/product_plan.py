"""Divides a product with a weight into tiles, and fixes the divisions on which a result's bits depend.

`out[t, n] = sum over k of weight[n, k] * x[t, k]` runs on tensor cores as `weight tile @ transposed x tile`: the
weight's rows fill the 64 rows of a wgmma instruction and the step's rows are its columns, so one row of a decode costs
16 columns instead of 64.

The weight's shape alone fixes an output's bits (`ProductPlan`): K is divided into splits of whole `SPLIT_UNIT`s; within
a split, an f32 accumulator takes 16 elements of K at a time, in order; the splits' sums are added in order. The number
of rows and columns of a program (`Tiles`) is free and chosen by the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trunkline_server.backends.cuda.kernels.card import Card

# Splits begin at multiples of this, which every BLOCK_K divides.
SPLIT_UNIT = 128
# Shorter splits cost more in partial sums than their programs gain.
MIN_SPLIT_ELEMENTS = 256
MAX_SPLITS = 16
# Programs of 64 weight rows with enough reads in flight to saturate the memory of an H200 (132 SMs). Each keeps 60 to
# 100 KiB in flight; the product of bandwidth and latency is about 4 MiB. docs/gpu.md lists values to measure.
SATURATING_PROGRAMS = 90
# Most rows of a step in one tile of a memory-bound product.
MAX_SMALL_ROWS = 64
# Fewest blocks of K in flight, one computed while the others are read. With fewer, the product waits for the memory.
MIN_STAGES = 3


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """The divisions on which the bits of a product with a weight [N, K] depend.

    split_elements: elements of K in a split, a multiple of `SPLIT_UNIT`; the last split may be shorter.
    """

    num_outputs: int
    num_inputs: int
    num_splits: int
    split_elements: int

    @staticmethod
    def of(num_outputs: int, num_inputs: int) -> ProductPlan:
        """Returns the plan of a weight [num_outputs, num_inputs]."""
        assert num_outputs > 0 and num_inputs > 0, f"a weight of [{num_outputs}, {num_inputs}]"
        wanted = _ceil_div(SATURATING_PROGRAMS, _ceil_div(num_outputs, 64))
        wanted = max(1, min(wanted, num_inputs // MIN_SPLIT_ELEMENTS, MAX_SPLITS))
        split_elements = _ceil_div(_ceil_div(num_inputs, SPLIT_UNIT), wanted) * SPLIT_UNIT
        return ProductPlan(num_outputs, num_inputs, _ceil_div(num_inputs, split_elements), split_elements)

    def splits(self) -> list[tuple[int, int]]:
        """Returns [first, end) of each split."""
        begins = range(0, self.num_inputs, self.split_elements)
        return [(begin, min(begin + self.split_elements, self.num_inputs)) for begin in begins]

    def tiles(self, num_rows: int, element_bytes: int, card: Card) -> Tiles:
        """Returns the tiles of a product with `num_rows` rows on a card."""
        # Number of tiles that keeps nearly every multiprocessor busy if the tensor cores are the limit.
        busy = card.num_processors * 10 // 11
        if element_bytes == 4:
            # Without tensor cores, for tests and for weights in f32; not optimised.
            return Tiles(64, 16, 64, num_warps=4, num_stages=2, is_parallel=True)
        if num_rows <= MAX_SMALL_ROWS:
            return self._small_tiles(num_rows, element_bytes, busy).fitted(element_bytes, card, card.half_shared_bytes)
        return self._large_tiles(num_rows, element_bytes, busy).fitted(element_bytes, card, card.shared_bytes)

    def _large_tiles(self, num_rows: int, element_bytes: int, busy: int) -> Tiles:
        # For one-byte elements, blocks of K are whole units, because sums of e4m3 are rounded after each block.
        block_k = SPLIT_UNIT if element_bytes == 1 else 64
        if element_bytes == 2 and self._num_tiles(num_rows, 128, 256) >= busy:
            return Tiles(128, 256, block_k, num_warps=8, num_stages=4, is_parallel=False)
        # A second accumulator, for the sum of blocks of one-byte elements, leaves room for half the columns.
        is_parallel = self._num_tiles(num_rows, 128, 128) < busy
        return Tiles(128, 128, block_k, num_warps=8, num_stages=4, is_parallel=is_parallel)

    def _small_tiles(self, num_rows: int, element_bytes: int, busy: int) -> Tiles:
        """Returns tiles for which two programs share a multiprocessor: one reads while the other begins or ends."""
        if num_rows <= 16:
            return Tiles(64, 16, 128, num_warps=4, num_stages=5, is_parallel=True)
        if num_rows <= 32:
            return Tiles(64, 32, 128, num_warps=4, num_stages=4, is_parallel=True)
        if self._num_tiles(num_rows, 128, 64) * self.num_splits >= busy:
            # Halves the reads of x.
            block_k = SPLIT_UNIT if element_bytes == 1 else 64
            return Tiles(128, 64, block_k, num_warps=4, num_stages=4, is_parallel=True)
        return Tiles(64, 64, 128, num_warps=4, num_stages=3, is_parallel=True)

    def _num_tiles(self, num_rows: int, block_n: int, block_t: int) -> int:
        return _ceil_div(self.num_outputs, block_n) * _ceil_div(num_rows, block_t)


def gated_tiles(num_rows: int, element_bytes: int, card: Card) -> Tiles:
    """Returns the tiles of a product with gate and up, of which a program has block_n rows each."""
    if element_bytes == 4:
        return Tiles(64, 16, 64, num_warps=4, num_stages=2, is_parallel=True)
    if num_rows <= MAX_SMALL_ROWS:
        block_t = 16 if num_rows <= 16 else 32 if num_rows <= 32 else 64
        tiles = Tiles(64, block_t, 128, num_warps=4, num_stages=4, is_parallel=True)
        return tiles.fitted(element_bytes, card, card.half_shared_bytes, num_weights=2)
    tiles = Tiles(128, 128, 64, num_warps=8, num_stages=4, is_parallel=False)
    return tiles.fitted(element_bytes, card, card.shared_bytes, num_weights=2)


@dataclass(frozen=True, slots=True)
class Tiles:
    """The division of work among programs. Bits do not depend on it, except on block_k for one-byte elements.

    block_n, block_t: weight rows and rows of the step in one tile. block_k: elements of K read at a time, `SPLIT_UNIT`
    for one-byte elements. is_parallel: each split has its own program, and the sums are added afterwards; otherwise a
    program computes all splits in order.
    """

    block_n: int
    block_t: int
    block_k: int
    num_warps: int
    num_stages: int
    is_parallel: bool

    def fitted(self, element_bytes: int, card: Card, shared_bytes: int, num_weights: int = 1) -> Tiles:
        """Returns the tiles with as many blocks of K in flight as fit, shortened so that `MIN_STAGES` of them do.

        num_weights: blocks of the weight for each block of x.
        """

        def num_fitting(block_k: int) -> int:
            fitting = shared_bytes // ((num_weights * self.block_n + self.block_t) * block_k * element_bytes)
            # The block being computed is in registers.
            return fitting if card.products_are_async else fitting + 1

        block_k = self.block_k
        while num_fitting(block_k) < MIN_STAGES and block_k > 32 and element_bytes > 1:
            block_k //= 2
        return replace(self, block_k=block_k, num_stages=min(self.num_stages, num_fitting(block_k)))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
