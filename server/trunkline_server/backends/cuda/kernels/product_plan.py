"""How a product with a weight is cut into tiles, and which of the cuts a result's bits depend on.

`out[t, n] = sum over k of weight[n, k] * x[t, k]` runs on tensor cores as `weight tile @ transposed x tile`: the
weight's rows fill the 64 rows of a wgmma instruction, and the step's rows are its columns, so that one row of a decode
costs 16 columns and not 64.

What an output's bits depend on is fixed by the weight's shape alone (`ProductPlan`): K is cut into splits of whole
`SPLIT_UNIT`s; within a split, an f32 accumulator takes 16 elements of K after the other, in order; the splits' sums are
added in order. How many rows and columns a program computes (`Tiles`) is free, and is chosen by the number of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trunkline_server.backends.cuda.kernels.card import Card

# Splits begin at multiples of this; every BLOCK_K divides it.
SPLIT_UNIT = 128
# Shorter splits cost more in partial sums than their programs gain.
MIN_SPLIT_ELEMENTS = 256
MAX_SPLITS = 16
# Programs of 64 weight rows that together have enough reads in flight to saturate the memory of an H200 (132 SMs):
# each keeps 60 to 100 KiB under way, of which the memory's bandwidth times its latency needs about 4 MiB.
SATURATING_PROGRAMS = 90
# Most rows of a step that one tile of a memory-bound product covers.
MAX_SMALL_ROWS = 64
# Blocks of K that are under way: one is computed while the others are read. Fewer wait for the memory.
MIN_STAGES = 3


@dataclass(frozen=True, slots=True)
class ProductPlan:
    """What the bits of a product with a weight [N, K] depend on.

    split_elements: elements of K in a split, a multiple of `SPLIT_UNIT`; the last split may be shorter.
    """

    num_outputs: int
    num_inputs: int
    num_splits: int
    split_elements: int

    @staticmethod
    def of(num_outputs: int, num_inputs: int) -> ProductPlan:
        """The plan of a weight [num_outputs, num_inputs]."""
        assert num_outputs > 0 and num_inputs > 0, f"a weight of [{num_outputs}, {num_inputs}]"
        wanted = _ceil_div(SATURATING_PROGRAMS, _ceil_div(num_outputs, 64))
        wanted = max(1, min(wanted, num_inputs // MIN_SPLIT_ELEMENTS, MAX_SPLITS))
        split_elements = _ceil_div(_ceil_div(num_inputs, SPLIT_UNIT), wanted) * SPLIT_UNIT
        return ProductPlan(num_outputs, num_inputs, _ceil_div(num_inputs, split_elements), split_elements)

    def splits(self) -> list[tuple[int, int]]:
        """[first, end) of each split."""
        begins = range(0, self.num_inputs, self.split_elements)
        return [(begin, min(begin + self.split_elements, self.num_inputs)) for begin in begins]

    def tiles(self, num_rows: int, element_bytes: int, card: Card) -> Tiles:
        """How a product with `num_rows` rows is computed on a card."""
        # Tiles that keep (nearly) every multiprocessor busy where the tensor cores are the limit.
        busy = card.num_processors * 10 // 11
        if element_bytes == 4:
            # Without tensor cores: for tests and for weights that are kept in f32, not for speed.
            return Tiles(64, 16, 64, num_warps=4, num_stages=2, is_parallel=True)
        if num_rows <= MAX_SMALL_ROWS:
            return self._small_tiles(num_rows, element_bytes, busy).fitted(element_bytes, card, card.half_shared_bytes)
        return self._large_tiles(num_rows, element_bytes, busy).fitted(element_bytes, card, card.shared_bytes)

    def _large_tiles(self, num_rows: int, element_bytes: int, busy: int) -> Tiles:
        # Blocks of K are all whole units where elements have one byte: sums of e4m3 are rounded after each.
        block_k = SPLIT_UNIT if element_bytes == 1 else 64
        if element_bytes == 2 and self.num_splits == 1 and self._num_tiles(num_rows, 128, 256) >= busy:
            return Tiles(128, 256, block_k, num_warps=8, num_stages=4, is_parallel=False)
        # A second accumulator, for the sum of the splits or of blocks, leaves room for half the columns.
        is_parallel = self._num_tiles(num_rows, 128, 128) < busy
        return Tiles(128, 128, block_k, num_warps=8, num_stages=4, is_parallel=is_parallel)

    def _small_tiles(self, num_rows: int, element_bytes: int, busy: int) -> Tiles:
        """Two programs share a multiprocessor, so that one reads while the other begins or ends."""
        if num_rows <= 16:
            return Tiles(64, 16, 128, num_warps=4, num_stages=5, is_parallel=True)
        if num_rows <= 32:
            return Tiles(64, 32, 128, num_warps=4, num_stages=4, is_parallel=True)
        if self._num_tiles(num_rows, 128, 64) * self.num_splits >= busy:
            # Half the reads of x.
            block_k = SPLIT_UNIT if element_bytes == 1 else 64
            return Tiles(128, 64, block_k, num_warps=4, num_stages=4, is_parallel=True)
        return Tiles(64, 64, 128, num_warps=4, num_stages=3, is_parallel=True)

    def _num_tiles(self, num_rows: int, block_n: int, block_t: int) -> int:
        return _ceil_div(self.num_outputs, block_n) * _ceil_div(num_rows, block_t)


@dataclass(frozen=True, slots=True)
class Tiles:
    """How programs share the work; no bit depends on it, but for block_k where elements have one byte.

    block_n, block_t: weight rows and rows of the step of one tile; block_k: elements of K read at a time, `SPLIT_UNIT`
        for elements of one byte.
    is_parallel: splits are computed by programs of their own, whose sums are added after; else one after the other.
    """

    block_n: int
    block_t: int
    block_k: int
    num_warps: int
    num_stages: int
    is_parallel: bool

    def fitted(self, element_bytes: int, card: Card, shared_bytes: int) -> Tiles:
        """With as many blocks of K under way as fit, or shorter ones where fewer than `MIN_STAGES` would."""

        def num_fitting(block_k: int) -> int:
            fitting = shared_bytes // ((self.block_n + self.block_t) * block_k * element_bytes)
            # The one that is computed lies in registers.
            return fitting if card.products_are_async else fitting + 1

        block_k = self.block_k
        while num_fitting(block_k) < MIN_STAGES and block_k > 32 and element_bytes > 1:
            block_k //= 2
        return replace(self, block_k=block_k, num_stages=min(self.num_stages, num_fitting(block_k)))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
