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
    gate, up, out, gate_stride, up_stride, out_stride, num_elements,
    KIND: tl.constexpr, HAS_UP: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    await_previous()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < num_elements
    x = tl.load(gate + row * gate_stride + columns, mask, other=0.0).to(tl.float32)
    result = activated(x, KIND)
    if HAS_UP:
        result *= tl.load(up + row * up_stride + columns, mask, other=0.0).to(tl.float32)
    tl.store(out + row * out_stride + columns, narrow(result, OUT), mask)


def silu_mul(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Computes silu(gate) * up in f32.

    gate, up: [T, N], rows contiguous, possibly the halves of one [T, 2 N]. Returns [T, N] in up's dtype, in `out` if it
    is given.
    """
    return _activated(gate, up, out, SILU)


def silu(x: torch.Tensor) -> torch.Tensor:
    """Computes x * sigmoid(x) in f32: [T, N] in x's dtype."""
    return _activated(x, None, None, SILU)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Computes 1 / (1 + exp(-x)): [T, N] f32."""
    out = torch.empty(x.shape, dtype=torch.float32, device=x.device)
    return _activated(x, None, out, SIGMOID)


def mul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Computes x * y in f32: [T, N] in x's dtype."""
    return _activated(y, x, None, IDENTITY)


def gelu_mul(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Computes gelu(gate) * up with the tanh approximation of GELU; otherwise as `silu_mul`."""
    return _activated(gate, up, out, GELU)


def gelu(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Computes gelu(x) in f32, with the tanh approximation: [T, N] in x's dtype, in `out` if it is given."""
    return _activated(x, None, out, GELU)


def gelu_erf(x: torch.Tensor) -> torch.Tensor:
    """Computes gelu(x) in f32, without approximation: [T, N] in x's dtype."""
    return _activated(x, None, None, GELU_ERF)


def relu_squared(x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Computes max(x, 0)^2 in f32 (arXiv:2109.08668): [T, N] in x's dtype, in `out` if it is given."""
    return _activated(x, None, out, RELU_SQUARED)


@triton.jit
def _clamped_swiglu_kernel(
    gate, up, out, gate_stride, up_stride, out_stride, num_elements, alpha, limit,
    OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < num_elements
    g = tl.load(gate + row * gate_stride + columns, mask, other=0.0).to(tl.float32)
    u = tl.load(up + row * up_stride + columns, mask, other=0.0).to(tl.float32)
    # Comparisons with NaN are false, so it stays NaN.
    g = tl.where(g > limit, limit, g)
    u = tl.where(u > limit, limit, tl.where(u < -limit, -limit, u))
    activated = g / (1.0 + tl.exp(-alpha * g)) * (u + 1.0)
    tl.store(out + row * out_stride + columns, narrow(activated, OUT), mask)


def clamped_swiglu(gate: torch.Tensor, up: torch.Tensor, activation: ClampedSwiglu) -> torch.Tensor:
    """Computes `activation` in f32; otherwise as `silu_mul`."""
    num_rows, width = gate.shape
    out = torch.empty(num_rows, width, dtype=gate.dtype, device=gate.device)
    _clamped_swiglu_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
        gate, up, out, gate.stride(0), up.stride(0), out.stride(0), width, activation.alpha, activation.limit,
        OUT=TRITON_DTYPES[out.dtype], BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def _activated(
    gate: torch.Tensor, up: torch.Tensor | None, out: torch.Tensor | None, kind: tl.constexpr
) -> torch.Tensor:
    assert up is None or gate.shape == up.shape, f"gate is {list(gate.shape)}, up {list(up.shape)}"
    num_rows, width = gate.shape
    factors = gate if up is None else up
    out = torch.empty(num_rows, width, dtype=factors.dtype, device=gate.device) if out is None else out
    if num_rows == 0:
        return out
    _activation_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
        gate, factors, out, gate.stride(0), factors.stride(0), out.stride(0), width, KIND=kind.value,
        HAS_UP=up is not None, OUT=TRITON_DTYPES[out.dtype], BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False,
        **overlap(gate.device),
    )  # fmt: skip
    return out
