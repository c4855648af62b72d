"""Multiplies heads by the Walsh-Hadamard matrix, which spreads a large channel over all: arXiv:2404.00456."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, narrow

# Rows of one program, constant; the tail is masked.
_ROWS = 16


def transform_run(head_size: int) -> int:
    """Returns how many elements are transformed together: the largest power of two that divides the head size."""
    return head_size & -head_size


@triton.jit
def transform(x, ROWS: tl.constexpr, SIZE: tl.constexpr, LOG_RUN: tl.constexpr):
    """Multiplies each run of 2^LOG_RUN elements of x [ROWS, SIZE] f32 by the matrix of 1 and -1, not normalised."""
    for stage in tl.static_range(LOG_RUN):
        pairs = tl.permute(tl.reshape(x, [ROWS, SIZE // (2 << stage), 2, 1 << stage]), [0, 1, 3, 2])
        low, high = tl.split(pairs)
        joined = tl.join(low + high, low - high)
        x = tl.reshape(tl.permute(joined, [0, 1, 3, 2]), [ROWS, SIZE])
    return x


@triton.jit
def _transform_heads_kernel(
    x, row_count, x_stride, factor,
    D: tl.constexpr, D_PAD: tl.constexpr, LOG_RUN: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    elements = tl.arange(0, D_PAD)
    mask = (rows < tl.load(row_count))[:, None] & (elements < D)[None, :]
    columns = tl.program_id(1) * D + elements
    pointers = x + rows[:, None] * x_stride + columns[None, :]
    values = tl.load(pointers, mask, other=0.0).to(tl.float32)
    tl.store(pointers, narrow(transform(values, ROWS, D_PAD, LOG_RUN) * factor, OUT), mask)


def transform_heads(x: torch.Tensor, head_size: int, factor: float, row_count: torch.Tensor) -> None:
    """Multiplies each head of x [T, heads * D] by the matrix and by factor, in place.

    row_count: [1] i32 on the device, rows beyond it are not touched. The matrix is its own inverse up to the factor 1 /
    transform_run(D).
    """
    num_rows, width = x.shape
    if num_rows == 0:
        return
    _transform_heads_kernel[(triton.cdiv(num_rows, _ROWS), width // head_size)](
        x, row_count, x.stride(0), factor,
        D=head_size, D_PAD=triton.next_power_of_2(head_size), LOG_RUN=transform_run(head_size).bit_length() - 1,
        OUT=TRITON_DTYPES[x.dtype], ROWS=_ROWS, num_warps=4,
    )  # fmt: skip
