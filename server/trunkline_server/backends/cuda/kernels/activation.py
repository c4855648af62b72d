"""Activations, elementwise, with and without a gate: arXiv:2002.05202."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap
from trunkline_server.models.ops import ClampedSwiglu

_BLOCK = 1024
# Constants of GELU's tanh approximation (arXiv:1606.08415): sqrt(2 / pi) * (x + 0.044715 x^3).
_GELU_FACTOR = tl.constexpr(0.7978845608028654)
_GELU_CUBIC = tl.constexpr(0.044715)
_SQRT_HALF = tl.constexpr(0.7071067811865476)
SILU = tl.constexpr(0)
GELU = tl.constexpr(1)
RELU_SQUARED = tl.constexpr(2)
SIGMOID = tl.constexpr(3)
IDENTITY = tl.constexpr(4)
GELU_ERF = tl.constexpr(5)
CLAMPED = tl.constexpr(6)


@triton.jit
def activated(x, KIND: tl.constexpr):
    """Returns the activation of x, f32."""
    if KIND == RELU_SQUARED:
        result = tl.where(x < 0.0, 0.0, x * x)
    elif KIND == SIGMOID:
        result = 1.0 / (1.0 + tl.exp(-x))
    elif KIND == IDENTITY:
        result = x
    elif KIND == GELU_ERF:
        result = 0.5 * x * (1.0 + tl.math.erf(x * _SQRT_HALF))
    else:
        # (1 + tanh(u)) / 2 is the logistic function of 2 u.
        exponent = 2.0 * _GELU_FACTOR * (x + _GELU_CUBIC * x * x * x) if KIND == GELU else x
        result = x / (1.0 + tl.exp(-exponent))
    return result


@triton.jit
def _activation_kernel(
    x, factors, out, x_stride, factors_stride, out_stride, num_elements, alpha, limit,
    KIND: tl.constexpr, HAS_FACTORS: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    await_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < num_elements
    values = tl.load(x + row * x_stride + columns, mask, other=0.0).to(tl.float32)
    if KIND == CLAMPED:
        # Comparisons with NaN are false, so it stays NaN.
        values = tl.where(values > limit, limit, values)
        result = values / (1.0 + tl.exp(-alpha * values))
    else:
        result = activated(values, KIND)
    if HAS_FACTORS:
        factor = tl.load(factors + row * factors_stride + columns, mask, other=0.0).to(tl.float32)
        if KIND == CLAMPED:
            factor = tl.where(factor > limit, limit, tl.where(factor < -limit, -limit, factor)) + 1.0
        result *= factor
    tl.store(out + row * out_stride + columns, narrow(result, OUT), mask)


def activate(
    kind: tl.constexpr | ClampedSwiglu,
    x: torch.Tensor,
    factors: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Computes an activation of x, times `factors` if they are given, in f32.

    kind: a constant of this module, or `ClampedSwiglu` of x as gate and factors as up. x, factors: [T, N], rows
    contiguous, possibly the halves of one [T, 2 N]. Returns [T, N] `out_dtype`; None: the dtype of factors, or else of
    x.
    """
    has_factors, factors = factors is not None, x if factors is None else factors
    assert x.shape == factors.shape, f"x is {list(x.shape)}, factors {list(factors.shape)}"
    num_rows, width = x.shape
    out = torch.empty(num_rows, width, dtype=out_dtype or factors.dtype, device=x.device)
    if num_rows == 0:
        return out
    clamp = ClampedSwiglu(alpha=0.0, limit=0.0)
    if isinstance(kind, ClampedSwiglu):
        kind, clamp = CLAMPED, kind
    _activation_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
        x, factors, out, x.stride(0), factors.stride(0), out.stride(0), width, clamp.alpha, clamp.limit,
        KIND=kind.value, HAS_FACTORS=has_factors, OUT=TRITON_DTYPES[out.dtype],
        BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out
