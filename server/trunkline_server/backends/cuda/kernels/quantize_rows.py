"""Rounds activations to 8 bits, with a scale for each row or one given scale."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.norm import row_block, row_warps
from trunkline_server.backends.cuda.kernels.numerics import E4M3_MAX, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap

_INT8_MAX = tl.constexpr(127.0)
# 1.5 * 2^23; adding and subtracting it rounds to a whole number, to nearest even.
_ROUNDER = tl.constexpr(12582912.0)


@triton.jit
def _quantize_kernel(
    x, given_scale, out, scales, x_stride, out_stride, num_elements, limit,
    IS_GIVEN: tl.constexpr, HAS_LIMIT: tl.constexpr, IS_INT8: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    await_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < num_elements
    values = tl.load(x + row * x_stride + columns, mask, other=0.0).to(tl.float32)
    largest = _INT8_MAX if IS_INT8 else E4M3_MAX
    if IS_GIVEN:
        scale = tl.load(given_scale)
    else:
        peak = tl.max(tl.abs(values), axis=0)
        if HAS_LIMIT:
            peak = tl.minimum(peak, limit)
        # A row of zeros stays zero.
        scale = tl.div_rn(tl.where(peak > 0.0, peak, 1.0), largest)
    tl.store(scales + row, scale)
    # Comparisons with NaN are false, so NaN is kept.
    scaled = tl.div_rn(values, scale)
    scaled = tl.where(scaled > largest, largest, tl.where(scaled < -largest, -largest, scaled))
    pointers = out + row * out_stride + columns
    if IS_INT8:
        tl.store(pointers, (scaled + _ROUNDER - _ROUNDER).to(tl.int8), mask)
    else:
        tl.store(pointers, narrow(scaled, tl.float8e4nv), mask)


def quantize_rows(
    x: torch.Tensor, dtype: torch.dtype, given_scale: torch.Tensor | None = None, limit: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rounds x to 8-bit values and scales, such that x is about `values * scales[:, None]`.

    x: [T, K] bf16, f16 or f32, rows contiguous; dtype: e4m3 or i8. given_scale: f32 [1], for all rows; None: a row's
    largest magnitude, at most `limit`, becomes the largest number. Larger elements saturate. Divides by the scale and
    rounds to nearest even, in f32. Returns values [T, K] (rows at multiples of 16 bytes) and scales [T] f32.
    """
    num_rows, width = x.shape
    values = torch.empty(num_rows, -(-width // 16) * 16, dtype=dtype, device=x.device)[:, :width]
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    if num_rows > 0:
        _quantize_kernel[(num_rows,)](
            x, scales if given_scale is None else given_scale, values, scales, x.stride(0), values.stride(0), width,
            0.0 if limit is None else limit, IS_GIVEN=given_scale is not None, HAS_LIMIT=limit is not None,
            IS_INT8=dtype == torch.int8, BLOCK=row_block(width), num_warps=row_warps(width), enable_fp_fusion=False,
            **overlap(x.device),
        )  # fmt: skip
    return values, scales
