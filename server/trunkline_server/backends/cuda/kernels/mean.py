"""Means over the rows of a chunk, which is the whole of its sequence."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, narrow

_COLUMNS = 128
# Rows that are loaded ahead.
_ROWS = 8


@triton.jit
def _mean_kernel(
    x, query_begin, out, x_stride, out_stride, num_columns,
    OUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Computes some columns of the mean of entry program_id(0)."""
    entry = tl.program_id(0)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    mask = columns < num_columns
    begin, end = tl.load(query_begin + entry).to(tl.int64), tl.load(query_begin + entry + 1).to(tl.int64)
    total = tl.zeros([COLUMNS], tl.float64)
    for first in range(begin, end, ROWS):
        for ahead in tl.static_range(ROWS):
            row = first + ahead
            is_row = columns < tl.where(row < end, num_columns, 0)
            total += tl.load(x + row * x_stride + columns, is_row, other=0.0).to(tl.float64)
    if end > begin:
        mean = (total / (end - begin).to(tl.float64)).to(tl.float32)
        tl.store(out + (end - 1) * out_stride + columns, narrow(mean, OUT), mask)


def mean(x: torch.Tensor, query_begin: torch.Tensor) -> torch.Tensor:
    """Computes the mean of each chunk's rows, in f64 and in the order of positions.

    x: [T, N], rows contiguous; query_begin: [S + 1] i32. Returns [T, N] in x's dtype, in which the last row of each
    chunk is its mean, and others are not written.
    """
    (num_rows, width), num_entries = x.shape, query_begin.shape[0] - 1
    out = torch.empty(num_rows, width, dtype=x.dtype, device=x.device)
    _mean_kernel[(num_entries, triton.cdiv(width, _COLUMNS))](
        x, query_begin, out, x.stride(0), out.stride(0), width,
        OUT=TRITON_DTYPES[out.dtype], ROWS=_ROWS, COLUMNS=_COLUMNS, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
