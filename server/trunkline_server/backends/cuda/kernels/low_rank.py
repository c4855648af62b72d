"""What adapters add to products: for each row scale * B (A x), with A and B of the row's slot.

Rows of a slot share tiles. The first launch multiplies them with A, in splits of K. The second adds the splits in
order, scales and narrows them, and adds their product with B to the rows of the result. A row's bits depend only on
that row, its adapter and its scale. Programs with nothing to do end at once: those of tiles without rows, of ranks
above the adapter's, and of weights that it leaves as they are. The second launch applies the gains of DoRA, too; see
`adapters/dora.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, dot, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap
from trunkline_server.backends.cuda.kernels.product import loaded_sum

# Rows of a step in a tile.
TILE_ROWS = 64
# Outputs of a program of the second launch, all of one weight.
TILE_OUTPUTS = 64
# Ranks are padded with zeros to multiples of this, so that tensor cores take them and rows begin at 32 bytes.
RANK_UNIT = 16
# Elements of K of a program of the first launch. More of them leave the memory idle if few rows have adapters.
SPLIT_ELEMENTS = 1024
# Rows of A of a program, and bytes of each that are read at a time.
_RANK_BLOCK, _BLOCK_BYTES = 32, 256


class Slots(NamedTuple):
    """The adapters on the device, that of slot 1 first, as kernels take them.

    elements: [slots, `stride`] bf16, f16 or f32. ranks: [slots] i32, padded, at most max_rank. scales: [slots,
    `num_weights`] f32, 0 for a weight that the adapter leaves as it is. gains: [slots, `num_outputs`] f32, those of
    DoRA, 1 where there is none; has_gains: [slots] i32, 0 for adapters without any, whose gains are not read.
    """

    elements: torch.Tensor
    ranks: torch.Tensor
    scales: torch.Tensor
    gains: torch.Tensor
    has_gains: torch.Tensor
    stride: int
    num_weights: int
    num_outputs: int
    max_rank: int


class AdapterRows(NamedTuple):
    """The rows of a step that have adapters, by slot, as kernels take them.

    tiles: [tiles, 3] i32, a slot and [begin, end) of its rows in `rows`; slot 0 if there are none. rows: [T] i32, row
    numbers in the step. scales: [T] f32, the factors of their requests.
    """

    tiles: torch.Tensor
    rows: torch.Tensor
    scales: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a slot has the matrices of a stack of weights [N, K].

    In a slot of rank R, A [weights * R, K] begins at element R * begin, and B [N, R] follows. first_weight: the column
    of the first weight in `Slots.scales`. first_output: of the first output in `Slots.gains`. tiles: [tiles, 3] i32,
    [begin, end) of outputs and their weight in the stack.
    """

    begin: int
    first_weight: int
    first_output: int
    num_weights: int
    num_inputs: int
    tiles: torch.Tensor

    @property
    def num_splits(self) -> int:
        return -(-self.num_inputs // SPLIT_ELEMENTS)


@triton.jit
def _matrix(slots, slot, rank, begin):
    """Returns a pointer to element rank * begin of a slot, counted from 0."""
    return slots.elements + slot.to(tl.int64) * slots.stride + rank.to(tl.int64) * begin


@triton.jit(do_not_specialize=["begin", "first_weight", "num_rows"])
def _shrink_kernel(
    x, slots, step, sums, begin, first_weight, num_rows, num_inputs, x_stride,
    NUM_WEIGHTS: tl.constexpr, RANK_BLOCKS: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_T: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes split program_id(2) of the rows of tile program_id(0) and `BLOCK_R` rows of A of one weight."""
    await_previous()
    tile = step.tiles + 3 * tl.program_id(0)
    slot = tl.load(tile) - 1
    if slot < 0:
        return
    weight = tl.program_id(1) // RANK_BLOCKS
    r0 = tl.program_id(1) % RANK_BLOCKS * BLOCK_R
    rank = tl.multiple_of(tl.load(slots.ranks + slot), 16)
    scale = tl.load(slots.scales + slot * slots.num_weights + first_weight + weight)
    if (r0 >= rank) | (scale == 0.0):
        return
    r = r0 + tl.arange(0, BLOCK_R)
    places = tl.load(tile + 1) + tl.arange(0, BLOCK_T)
    is_place = places < tl.load(tile + 2)
    rows = tl.load(step.rows + places, is_place, other=0)
    x_rows = x + rows[:, None].to(tl.int64) * x_stride
    a_rows = _matrix(slots, slot, rank, begin) + (weight * rank + r)[:, None].to(tl.int64) * num_inputs
    first = tl.program_id(2) * SPLIT
    acc = tl.zeros((BLOCK_T, BLOCK_R), dtype=tl.float32)
    end = min(first + SPLIT, num_inputs)
    acc = loaded_sum(acc, x_rows, is_place, a_rows, r < rank, first, end, num_inputs, BLOCK_K)
    sums_rows = sums + (tl.program_id(2).to(tl.int64) * num_rows + places[:, None]) * (NUM_WEIGHTS * slots.max_rank)
    tl.store(sums_rows + weight * slots.max_rank + r[None, :], acc, is_place[:, None] & (r < rank)[None, :])


@triton.jit(do_not_specialize=["begin", "first_weight", "first_output", "num_rows"])
def _expand_kernel(
    sums, slots, step, tiles, bias, out, begin, first_weight, first_output, num_rows, out_stride,
    NUM_WEIGHTS: tl.constexpr, NUM_SPLITS: tl.constexpr, DTYPE: tl.constexpr,
    HAS_BIAS: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Adds to outputs of tile program_id(1) in the rows of tile program_id(0). begin: of B. bias: [N], if any."""
    await_previous()
    tile, outputs = step.tiles + 3 * tl.program_id(0), tiles + 3 * tl.program_id(1)
    slot = tl.load(tile) - 1
    if slot < 0:
        return
    weight = tl.load(outputs + 2)
    scale = tl.load(slots.scales + slot * slots.num_weights + first_weight + weight)
    if scale == 0.0:
        return
    rank = tl.multiple_of(tl.load(slots.ranks + slot), 16)
    places = tl.load(tile + 1) + tl.arange(0, BLOCK_T)
    is_place = places < tl.load(tile + 2)
    rows = tl.load(step.rows + places, is_place, other=0)
    factors = tl.load(step.scales + places, is_place, other=0.0) * scale
    n = tl.load(outputs) + tl.arange(0, BLOCK_N)
    is_output = n < tl.load(outputs + 1)
    b_rows = _matrix(slots, slot, rank, begin) + n[:, None].to(tl.int64) * rank
    width = NUM_WEIGHTS * slots.max_rank
    sums_rows = sums + places[:, None].to(tl.int64) * width + weight * slots.max_rank
    acc = tl.zeros((BLOCK_T, BLOCK_N), dtype=tl.float32)
    for r0 in range(0, rank, BLOCK_R):
        r = (r0 + tl.arange(0, BLOCK_R))[None, :]
        between = tl.load(sums_rows + r, is_place[:, None], other=0.0)
        for split in tl.static_range(1, NUM_SPLITS):
            split_rows = sums_rows + (num_rows * split).to(tl.int64) * width
            between += tl.load(split_rows + r, is_place[:, None], other=0.0)
        between = narrow(between * factors[:, None], DTYPE)
        acc = dot(between, tl.load(b_rows + r, is_output[:, None], other=0.0).T, acc)
    pointers = out + rows[:, None].to(tl.int64) * out_stride + n[None, :]
    mask = is_place[:, None] & is_output[None, :]
    if tl.load(slots.has_gains + slot) != 0:
        gains = slots.gains + slot.to(tl.int64) * slots.num_outputs + first_output
        gain = tl.load(gains + n, is_output, other=1.0)[None, :]
        request = tl.load(step.scales + places, is_place, other=0.0)[:, None]
        product = tl.load(pointers, mask, other=0.0).to(tl.float32)
        if HAS_BIAS:
            product -= tl.load(bias + n, is_output, other=0.0)[None, :]
        acc = acc * gain + request * (gain - 1.0) * product
    before = tl.load(pointers, mask, other=0.0).to(tl.float32)
    tl.store(pointers, narrow(before + acc, DTYPE), mask)


def sums_shape(place: Place, num_rows: int, max_rank: int) -> tuple[int, int, int]:
    """Returns the shape of the f32 sums of splits that `add_low_rank` allocates."""
    return place.num_splits, num_rows, place.num_weights * max_rank


def add_low_rank(
    x: torch.Tensor, out: torch.Tensor, place: Place, slots: Slots, step: AdapterRows, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Adds what adapters add to the product of x [T, K] with the weights of a place to out [T, N]; returns out.

    bias: [N] f32, what out has that is no part of the product. x, out: in the dtype of the slots, rows contiguous. The
    first product is rounded to it, and so is the sum. Rows without an adapter keep their bits.
    """
    assert x.dtype == out.dtype == slots.elements.dtype, f"x is {x.dtype}, out {out.dtype}"
    num_rows, num_tiles = x.shape[0], step.tiles.shape[0]
    if num_rows == 0:
        return out
    sums = torch.empty(sums_shape(place, num_rows, slots.max_rank), dtype=torch.float32, device=x.device)
    rank_blocks = triton.cdiv(slots.max_rank, _RANK_BLOCK)
    _shrink_kernel[(num_tiles, place.num_weights * rank_blocks, place.num_splits)](
        x, slots, step, sums, place.begin, place.first_weight, num_rows, place.num_inputs, x.stride(0),
        NUM_WEIGHTS=place.num_weights, RANK_BLOCKS=rank_blocks, SPLIT=SPLIT_ELEMENTS, BLOCK_T=TILE_ROWS,
        BLOCK_R=_RANK_BLOCK, BLOCK_K=_BLOCK_BYTES // x.element_size(), num_warps=4, num_stages=3,
        enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    begin = place.begin + place.num_weights * place.num_inputs
    _expand_kernel[(num_tiles, len(place.tiles))](
        sums, slots, step, place.tiles, sums if bias is None else bias, out, begin, place.first_weight,
        place.first_output, num_rows, out.stride(0),
        NUM_WEIGHTS=place.num_weights, NUM_SPLITS=place.num_splits, DTYPE=TRITON_DTYPES[out.dtype],
        HAS_BIAS=bias is not None, BLOCK_T=TILE_ROWS, BLOCK_N=TILE_OUTPUTS, BLOCK_R=RANK_UNIT, num_warps=4,
        num_stages=1, enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out
