"""Gated activations, elementwise: arXiv:2002.05202."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, narrow

_BLOCK = 1024
# Constants of GELU's tanh approximation (arXiv:1606.08415): sqrt(2 / pi) * (x + 0.044715 x^3).
_GELU_FACTOR = tl.constexpr(0.7978845608028654)
_GELU_CUBIC = tl.constexpr(0.044715)


@triton.jit
def _gated_kernel(
    gate, up, out, gate_stride, up_stride, out_stride, num_elements,
    IS_GELU: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < num_elements
    x = tl.load(gate + row * gate_stride + columns, mask, other=0.0).to(tl.float32)
    factor = tl.load(up + row * up_stride + columns, mask, other=0.0).to(tl.float32)
    # (1 + tanh(u)) / 2 is the logistic function of 2 u.
    exponent = 2.0 * _GELU_FACTOR * (x + _GELU_CUBIC * x * x * x) if IS_GELU else x
    activated = x / (1.0 + tl.exp(-exponent))
    tl.store(out + row * out_stride + columns, narrow(activated * factor, OUT), mask)


def silu_mul(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Computes silu(gate) * up in f32.

    gate, up: [T, N], rows contiguous, possibly the halves of one [T, 2 N]. Returns [T, N] in gate's dtype, in `out` if
    it is given.
    """
    return _gated(gate, up, out, is_gelu=False)


def gelu_mul(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Computes gelu(gate) * up with the tanh approximation of GELU; otherwise as `silu_mul`."""
    return _gated(gate, up, out, is_gelu=True)


def _gated(gate: torch.Tensor, up: torch.Tensor, out: torch.Tensor | None, *, is_gelu: bool) -> torch.Tensor:
    assert gate.shape == up.shape, f"gate is {list(gate.shape)}, up {list(up.shape)}"
    num_rows, width = gate.shape
    out = torch.empty(num_rows, width, dtype=gate.dtype, device=gate.device) if out is None else out
    if num_rows == 0:
        return out
    _gated_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
        gate, up, out, gate.stride(0), up.stride(0), out.stride(0), width,
        IS_GELU=is_gelu, OUT=TRITON_DTYPES[out.dtype], BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
