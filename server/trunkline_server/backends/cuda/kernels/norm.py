"""Norms: root mean square of rows, of heads and of a residual's sum (arXiv:1910.07467), and layer norm of rows.

Each program has a row, or a row's heads, in one block, so the order of its sum depends only on the width. Each element
is moved once, at the memory's speed; sums and products are f32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap
from trunkline_server.backends.cuda.kernels.product import ProductEnd, Unsummed, sum_of_splits

# Widest row that one program holds in registers.
MAX_ROW_ELEMENTS = 1 << 16
# Elements of the heads that one program normalises.
_HEADS_BLOCK = 4096


@triton.jit
def _normalized(x, weight, num_elements, eps):
    """Normalises x [BLOCK] f32, which is zero beyond num_elements."""
    mean = tl.sum(x * x, axis=0) / num_elements
    return x * tl.rsqrt(mean + eps) * weight


@triton.jit
def _norm_kernel(
    x, weight, bias, out, x_stride, out_stride, num_elements, eps,
    IS_CENTRED: tl.constexpr, HAS_BIAS: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    await_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < num_elements
    values = tl.load(x + row * x_stride + columns, mask, other=0.0).to(tl.float32)
    if IS_CENTRED:
        values = tl.where(mask, values - tl.sum(values, axis=0) / num_elements, 0.0)
    factors = tl.load(weight + columns, mask, other=0.0).to(tl.float32)
    normed = _normalized(values, factors, num_elements, eps)
    if HAS_BIAS:
        normed += tl.load(bias + columns, mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, narrow(normed, OUT), mask)


@triton.jit(do_not_specialize=["num_rows"])
def _add_rms_norm_kernel(
    residual, delta, weight, total, out, product_end,
    residual_stride, delta_stride, total_stride, out_stride, num_elements, num_rows, eps,
    NUM_SPLITS: tl.constexpr, DELTA: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """delta: [T, N], or with several splits [splits, T, N] f32, whose sum is rounded to DELTA."""
    await_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < num_elements
    before = tl.load(residual + row * residual_stride + columns, mask, other=0.0)
    if NUM_SPLITS == 1:
        change = tl.load(delta + row * delta_stride + columns, mask, other=0.0)
    else:
        change = sum_of_splits(delta, product_end, row, columns, mask, num_elements, num_rows, NUM_SPLITS)
        change = narrow(change, DELTA)
    values = before + change.to(tl.float32)
    tl.store(total + row * total_stride + columns, values, mask)
    factors = tl.load(weight + columns, mask, other=0.0).to(tl.float32)
    normed = _normalized(values, factors, num_elements, eps)
    tl.store(out + row * out_stride + columns, narrow(normed, OUT), mask)


@triton.jit
def _head_norm_kernel(
    x, weight, out, x_stride, out_stride, num_heads, head_size, divisor, eps,
    HAS_WEIGHT: tl.constexpr, OUT: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    await_previous()
    row = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    elements = tl.arange(0, BLOCK)
    mask = (heads < num_heads)[:, None] & (elements < head_size)[None, :]
    offsets = heads[:, None] * head_size + elements[None, :]
    values = tl.load(x + row * x_stride + offsets, mask, other=0.0).to(tl.float32)
    normed = values * tl.rsqrt(tl.sum(values * values, axis=1) / divisor + eps)[:, None]
    if HAS_WEIGHT:
        normed *= tl.load(weight + elements, elements < head_size, other=0.0).to(tl.float32)[None, :]
    tl.store(out + row * out_stride + offsets, narrow(normed, OUT), mask)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, out_dtype: torch.dtype) -> torch.Tensor:
    """Computes x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

    x: [T, N] f32, bf16 or f16, rows contiguous; weight: [N] of any of these. Returns [T, N] `out_dtype`.
    """
    return _normed(x, weight, None, eps, out_dtype, is_centred=False)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, eps: float, out_dtype: torch.dtype
) -> torch.Tensor:
    """Computes (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias (arXiv:1607.06450); otherwise as `rms_norm`."""
    return _normed(x, weight, bias, eps, out_dtype, is_centred=True)


def _normed(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    eps: float,
    out_dtype: torch.dtype,
    *,
    is_centred: bool,
) -> torch.Tensor:
    num_rows, width = x.shape
    out = torch.empty(num_rows, width, dtype=out_dtype, device=x.device)
    if num_rows == 0:
        return out
    _norm_kernel[(num_rows,)](
        x, weight, weight if bias is None else bias, out, x.stride(0), out.stride(0), width, eps,
        IS_CENTRED=is_centred, HAS_BIAS=bias is not None, OUT=TRITON_DTYPES[out.dtype], BLOCK=row_block(width),
        num_warps=row_warps(width), enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out


def add_rms_norm(
    residual: torch.Tensor,
    delta: torch.Tensor | Unsummed,
    weight: torch.Tensor,
    eps: float,
    out_dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes `residual + delta` and its `rms_norm`, with the bits of the two operations one after the other.

    residual: [T, N] f32; delta: [T, N] f32, bf16 or f16, or a product, whose splits are then added first. Returns the
    sum [T, N] f32 and the norm [T, N] `out_dtype`.
    """
    num_rows, width = residual.shape
    total = torch.empty(num_rows, width, dtype=torch.float32, device=residual.device)
    out = torch.empty(num_rows, width, dtype=out_dtype, device=residual.device)
    if num_rows == 0:
        return total, out
    if isinstance(delta, Unsummed):
        addend, num_splits, end, rounded = delta.partials, len(delta.partials), delta.end, delta.out
        assert end.soft_cap is None, "only the output head has a soft cap"
    else:
        addend, num_splits, end, rounded = delta, 1, ProductEnd(), delta
    _add_rms_norm_kernel[(num_rows,)](
        residual, addend, weight, total, out, end,
        residual.stride(0), addend.stride(0), total.stride(0), out.stride(0), width, num_rows, eps,
        NUM_SPLITS=num_splits, DELTA=TRITON_DTYPES[rounded.dtype], OUT=TRITON_DTYPES[out.dtype], BLOCK=row_block(width),
        num_warps=row_warps(width), enable_fp_fusion=False, **overlap(residual.device),
    )  # fmt: skip
    return total, out


def head_rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, head_size: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Applies `rms_norm` to each head separately.

    x: [T, heads * D], rows contiguous, possibly part of wider ones; weight: [D]. Returns [T, heads * D] in x's dtype,
    in `out` if it is given (which may be `x` itself).
    """
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    return _head_normed(x, weight, eps, head_size, out, divisor=head_size)


def head_l2_norm(x: torch.Tensor, eps: float, head_size: int) -> torch.Tensor:
    """Computes x / sqrt(sum(x^2) + eps) of each head of x [T, heads * D]. Returns [T, heads * D] in x's dtype."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return _head_normed(x, None, eps, head_size, out, divisor=1)


def _head_normed(
    x: torch.Tensor, weight: torch.Tensor | None, eps: float, head_size: int, out: torch.Tensor, *, divisor: int
) -> torch.Tensor:
    """Divides each head by the root of the sum of its squares over `divisor`, plus `eps`."""
    num_rows, width = x.shape
    assert width % head_size == 0, f"rows of {width} elements are not heads of {head_size}"
    if num_rows == 0:
        return out
    num_heads, block = width // head_size, triton.next_power_of_2(head_size)
    heads = min(triton.next_power_of_2(num_heads), max(1, _HEADS_BLOCK // block))
    _head_norm_kernel[(num_rows, triton.cdiv(num_heads, heads))](
        x, x if weight is None else weight, out, x.stride(0), out.stride(0), num_heads, head_size, divisor, eps,
        HAS_WEIGHT=weight is not None, OUT=TRITON_DTYPES[out.dtype], HEADS=heads, BLOCK=block, num_warps=4,
        enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out


def row_block(width: int) -> int:
    """Returns the block that holds a row."""
    assert 1 <= width <= MAX_ROW_ELEMENTS, f"a row of {width} elements, but at most {MAX_ROW_ELEMENTS} fit"
    block: int = triton.next_power_of_2(width)
    return block


def row_warps(width: int) -> int:
    """Depends only on the width, because it changes the order of the sum."""
    return max(1, min(16, row_block(width) // 512))
