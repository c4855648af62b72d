"""Dequantises elements of grouped weights (`quantized/grouped.py`), in registers or as whole rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, dot, from_e4m3, narrow
from trunkline_server.backends.cuda.quantized.grouped import BLOCK_INPUTS, GroupedWeight

_ROWS_BLOCK = 16


class Groups(NamedTuple):
    """The tensors of a `GroupedWeight`, and the strides of their rows, as kernels take them."""

    quants: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    minima: torch.Tensor | None
    table: torch.Tensor | None
    quants_stride: int
    stride: int

    @staticmethod
    def of(weight: GroupedWeight) -> Groups:
        strides = weight.quants.stride(0), weight.scales.stride(0)
        return Groups(weight.quants, weight.scales, weight.zeros, weight.minima, weight.table, *strides)


class Grouping(NamedTuple):
    """The constants of a `GroupedWeight`. GROUP: its `group_size`."""

    BITS: int
    ZERO_POINT: int
    IS_E4M3: bool
    GROUP: int

    @staticmethod
    def of(weight: GroupedWeight) -> Grouping:
        return Grouping(weight.bits, weight.zero_point, weight.is_e4m3, weight.group_size)


@triton.jit
def _of_groups(numbers, rows, row_mask, stride, k, WIDTH: tl.constexpr, GROUP: tl.constexpr):
    """Loads the group numbers of elements k to k + WIDTH, f32 [rows, groups here, 1]."""
    HERE: tl.constexpr = 1 if GROUP >= WIDTH else WIDTH // GROUP
    groups = k // GROUP + tl.arange(0, HERE)
    pointers = numbers + rows[:, None].to(tl.int64) * stride + groups[None, :]
    return tl.load(pointers, row_mask[:, None], other=0.0).to(tl.float32)[:, :, None]


@triton.jit
def group_elements(quants, weight, rows, row_mask, k, G: tl.constexpr, NUM_ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Dequantises quants [NUM_ROWS, WIDTH], elements k to k + WIDTH of `rows`, to f32.

    Products are exact in f32 for scales of f16 and bf16, so each element is rounded at most once.
    """
    GROUP: tl.constexpr = G.GROUP
    HERE: tl.constexpr = 1 if GROUP >= WIDTH else WIDTH // GROUP
    if weight.table is not None:
        values = tl.load(weight.table + quants.to(tl.int32))
    elif G.IS_E4M3:
        values = from_e4m3(quants, tl.float32)
    else:
        values = quants.to(tl.float32)
    values = values.reshape(NUM_ROWS, HERE, WIDTH // HERE)
    scale = _of_groups(weight.scales, rows, row_mask, weight.stride, k, WIDTH, GROUP)
    if weight.minima is not None:
        values = values * scale + _of_groups(weight.minima, rows, row_mask, weight.stride, k, WIDTH, GROUP)
    elif weight.zeros is not None:
        values = (values - _of_groups(weight.zeros, rows, row_mask, weight.stride, k, WIDTH, GROUP)) * scale
    else:
        values = (values - G.ZERO_POINT) * scale
    return values.reshape(NUM_ROWS, WIDTH)


@triton.jit
def grouped_sum(
    acc, weight, rows, n_mask, x_rows, t_mask, first, end, num_inputs,
    G: tl.constexpr, DTYPE: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes `loaded_sum` for rows [BLOCK_N] of a grouped weight, whose elements are converted to DTYPE."""
    # Bytes of a block, and the elements of it that one product takes.
    BITS: tl.constexpr = G.BITS
    WIDTH: tl.constexpr = BLOCK_K // 2 if BITS == 4 else BLOCK_K
    quants_rows = weight.quants + rows[:, None].to(tl.int64) * weight.quants_stride + tl.arange(0, WIDTH)[None, :]
    for k0 in range(first, end, BLOCK_K):
        packed = tl.load(quants_rows + k0 // BLOCK_K * WIDTH, n_mask[:, None], other=0)
        for half in tl.static_range(8 // BITS):
            k = k0 + half * WIDTH
            part = ((packed >> (4 * half)) & 0x0F) if BITS == 4 else packed
            weights = group_elements(part, weight, rows, n_mask, k, G, acc.shape[0], WIDTH)
            columns = (k + tl.arange(0, WIDTH))[None, :]
            values = tl.load(x_rows + columns, t_mask[:, None] & (columns < num_inputs), other=0.0)
            acc = dot(narrow(weights, DTYPE), values.T, acc)
    return acc


@triton.jit(do_not_specialize=["num_rows"])
def _rows_kernel(
    row_ids, weight, out, num_rows, num_inputs, out_stride,
    G: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    mask = at < num_rows
    rows = at if row_ids is None else tl.load(row_ids + at, mask, other=0)
    k0 = tl.program_id(1) * BLOCK
    BITS: tl.constexpr = G.BITS
    WIDTH: tl.constexpr = BLOCK // 2 if BITS == 4 else BLOCK
    bytes_at = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    pointers = weight.quants + rows[:, None].to(tl.int64) * weight.quants_stride + bytes_at[None, :]
    packed = tl.load(pointers, mask[:, None], other=0)
    for half in tl.static_range(8 // BITS):
        k = k0 + half * WIDTH
        part = ((packed >> (4 * half)) & 0x0F) if BITS == 4 else packed
        values = group_elements(part, weight, rows, mask, k, G, ROWS, WIDTH)
        columns = k + tl.arange(0, WIDTH)
        pointers = out + at[:, None].to(tl.int64) * out_stride + columns[None, :]
        tl.store(pointers, narrow(values, OUT), mask[:, None] & (columns < num_inputs)[None, :])


def dequantized_rows(weight: GroupedWeight, row_ids: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    """Writes rows of the weight, columns in the weight's order, to out [rows, K] f32, bf16 or f16.

    row_ids: [rows] i32 or i64, each in 0..N; None: all rows in order. Returns out.
    """
    num_rows = weight.num_outputs if row_ids is None else row_ids.shape[0]
    if num_rows == 0:
        return out
    grid = (triton.cdiv(num_rows, _ROWS_BLOCK), triton.cdiv(weight.num_inputs, BLOCK_INPUTS))
    _rows_kernel[grid](
        row_ids, Groups.of(weight), out, num_rows, weight.num_inputs, out.stride(0), G=Grouping.of(weight),
        OUT=TRITON_DTYPES[out.dtype], ROWS=_ROWS_BLOCK, BLOCK=BLOCK_INPUTS, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
