"""Shared parts of products with all kinds of weights: the order of tiles, the sum of splits, the end of a tile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, dot, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap
from trunkline_server.backends.cuda.kernels.product_plan import ProductPlan

# Consecutive tiles of the step's rows with the same weight rows, which then come from the L2 cache.
GROUP_TILES = 8
_REDUCE_BLOCK = 1024


class ProductEnd(NamedTuple):
    """The operations after a sum, in this order: times the scales, plus the bias, capped, rounded. Kernels take it.

    bias: [N] f32. scales: of the weight's rows [N] f32, and of the step's rows [T] f32. soft_cap: a sum s becomes
    soft_cap * tanh(s / soft_cap).
    """

    bias: torch.Tensor | None = None
    soft_cap: float | None = None
    scales: tuple[torch.Tensor, torch.Tensor] | None = None


@triton.jit
def grouped_tile(tile, num_n_tiles, num_t_tiles, GROUP: tl.constexpr):
    """Returns (n tile, t tile) of a tile's number: all n tiles with `GROUP` t tiles, then with the next t tiles."""
    tiles_in_group = GROUP * num_n_tiles
    first_t = (tile // tiles_in_group) * GROUP
    group_size = min(num_t_tiles - first_t, GROUP)
    in_group = tile % tiles_in_group
    return in_group // group_size, first_t + in_group % group_size


@triton.jit
def loaded_sum(acc, weight_rows, n_mask, x_rows, t_mask, first, end, num_inputs, BLOCK_K: tl.constexpr):
    """Adds the products of elements `first` to `end` of K, which threads load, to acc [BLOCK_N, BLOCK_T].

    weight_rows, x_rows: pointers to the rows of a tile, [BLOCK_N, 1] and [BLOCK_T, 1].
    """
    for k in range(first, end, BLOCK_K):
        columns = (k + tl.arange(0, BLOCK_K))[None, :]
        is_inside = columns < num_inputs
        weights = tl.load(weight_rows + columns, n_mask[:, None] & is_inside, other=0.0)
        rows = tl.load(x_rows + columns, t_mask[:, None] & is_inside, other=0.0)
        acc = dot(weights, rows.T, acc)
    return acc


@triton.jit
def capped(x, soft_cap):
    return soft_cap * (1.0 - 2.0 / (tl.exp(2.0 * x / soft_cap) + 1.0))


@triton.jit
def store_tile(
    acc, end, out, n0, t0, num_outputs, num_rows, out_stride,
    OUT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Applies the end of a product to acc [BLOCK_N, BLOCK_T] f32 and writes it to out [T, N]."""
    n = n0 + tl.arange(0, BLOCK_N)
    t = t0 + tl.arange(0, BLOCK_T)
    if end.scales is not None:
        acc *= tl.load(end.scales[0] + n, n < num_outputs, other=0.0)[:, None]
        acc *= tl.load(end.scales[1] + t, t < num_rows, other=0.0)[None, :]
    if end.bias is not None:
        acc += tl.load(end.bias + n, n < num_outputs, other=0.0)[:, None]
    if end.soft_cap is not None:
        acc = capped(acc, end.soft_cap)
    offsets = t[None, :].to(tl.int64) * out_stride + n[:, None]
    tl.store(out + offsets, narrow(acc, OUT), (n < num_outputs)[:, None] & (t < num_rows)[None, :])


@triton.jit
def store_split(
    acc, end, out, partials, split, n0, t0, num_outputs, num_rows, out_stride,
    NUM_SPLITS: tl.constexpr, OUT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr,
):  # fmt: skip
    """Stores acc [BLOCK_N, BLOCK_T] as `store_tile` does; with several splits, in partials [splits, T, N] f32."""
    if NUM_SPLITS == 1:
        store_tile(acc, end, out, n0, t0, num_outputs, num_rows, out_stride, OUT, BLOCK_N, BLOCK_T)
    else:
        n = n0 + tl.arange(0, BLOCK_N)
        t = t0 + tl.arange(0, BLOCK_T)
        offsets = (split.to(tl.int64) * num_rows + t[None, :]) * num_outputs + n[:, None]
        tl.store(partials + offsets, acc, (n < num_outputs)[:, None] & (t < num_rows)[None, :])


@triton.jit
def sum_of_splits(partials, end, row, n, mask, num_outputs, num_rows, NUM_SPLITS: tl.constexpr):
    """Returns elements n of a row of partials [splits, T, N], added in order, scaled and with the bias."""
    total = tl.load(partials + row * num_outputs + n, mask, other=0.0)
    for split in tl.static_range(1, NUM_SPLITS):
        total += tl.load(partials + (split * num_rows + row) * num_outputs + n, mask, other=0.0)
    if end.scales is not None:
        total *= tl.load(end.scales[0] + n, mask, other=0.0)
        total *= tl.load(end.scales[1] + row)
    if end.bias is not None:
        total += tl.load(end.bias + n, mask, other=0.0)
    return total


@triton.jit(do_not_specialize=["num_rows"])
def _add_splits_kernel(
    partials, end, out, num_outputs, num_rows, out_stride,
    NUM_SPLITS: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    await_previous()
    row = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = n < num_outputs
    total = sum_of_splits(partials, end, row, n, mask, num_outputs, num_rows, NUM_SPLITS)
    if end.soft_cap is not None:
        total = capped(total, end.soft_cap)
    tl.store(out + row * out_stride + n, narrow(total, OUT), mask)


def make_partials(plan: ProductPlan, num_rows: int, device: torch.device) -> torch.Tensor:
    """Allocates memory for the sums of splits: [splits, T, N] f32."""
    return torch.empty(plan.num_splits, num_rows, plan.num_outputs, dtype=torch.float32, device=device)


@dataclass(frozen=True, slots=True)
class Unsummed:
    """A product whose splits have not been added yet.

    partials: [splits, T, N] f32. end: follows their sum. out: [T, N], where `summed` writes the result.
    """

    partials: torch.Tensor
    end: ProductEnd
    out: torch.Tensor


def summed(product: torch.Tensor | Unsummed) -> torch.Tensor:
    """Returns a product [T, N]. Adds its splits in order and applies its end if that has not been done."""
    if isinstance(product, torch.Tensor):
        return product
    partials, end, out = product.partials, product.end, product.out
    num_splits, num_rows, num_outputs = partials.shape
    _add_splits_kernel[(num_rows, triton.cdiv(num_outputs, _REDUCE_BLOCK))](
        partials, end, out, num_outputs, num_rows, out.stride(0),
        NUM_SPLITS=num_splits, OUT=TRITON_DTYPES[out.dtype], BLOCK=_REDUCE_BLOCK, num_warps=4, enable_fp_fusion=False,
        **overlap(out.device),
    )  # fmt: skip
    return out


def is_describable(tensor: torch.Tensor) -> bool:
    """Returns True if a tensor descriptor can copy a matrix: rows and start are at multiples of 16 bytes."""
    row_bytes = tensor.stride(0) * tensor.element_size()
    return tensor.data_ptr() % 16 == 0 and row_bytes % 16 == 0 and tensor.stride(1) == 1 and tensor.shape[0] > 0
