"""Products of each head with a matrix of its own, in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.experts import BLOCK_K, BLOCK_N, FEW_ROWS, MANY_ROWS
from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, narrow
from trunkline_server.backends.cuda.kernels.product import loaded_sum


@triton.jit(do_not_specialize=["num_rows"])
def _head_linear_kernel(
    x, weight, out, num_rows, num_outputs, num_inputs, x_stride, out_stride,
    OUT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes tile program_id(0) of the rows and tile program_id(1) of the outputs of head program_id(2)."""
    head = tl.program_id(2)
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    weight_rows = weight + (head.to(tl.int64) * num_outputs + n[:, None]) * num_inputs
    x_rows = x + t[:, None].to(tl.int64) * x_stride + head * num_inputs
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    acc = loaded_sum(acc, weight_rows, n < num_outputs, x_rows, t < num_rows, 0, num_inputs, num_inputs, BLOCK_K)
    offsets = t[None, :].to(tl.int64) * out_stride + head * num_outputs + n[:, None]
    tl.store(out + offsets, narrow(acc, OUT), (n < num_outputs)[:, None] & (t < num_rows)[None, :])


def head_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiplies each head of x [T, H * K] with its matrix of weight [H, N, K], which is contiguous and of x's dtype.

    Returns [T, H * N]. A row's bits depend only on that row and the weight.
    """
    num_rows, (num_heads, num_outputs, num_inputs) = x.shape[0], weight.shape
    assert x.shape[1] == num_heads * num_inputs, f"x is {list(x.shape)}, the weight {list(weight.shape)}"
    out = torch.empty(num_rows, num_heads * num_outputs, dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    block_t = FEW_ROWS if num_rows <= FEW_ROWS else MANY_ROWS
    _head_linear_kernel[(triton.cdiv(num_rows, block_t), triton.cdiv(num_outputs, BLOCK_N), num_heads)](
        x, weight, out, num_rows, num_outputs, num_inputs, x.stride(0), out.stride(0),
        OUT=TRITON_DTYPES[out.dtype], BLOCK_N=BLOCK_N, BLOCK_T=block_t, BLOCK_K=BLOCK_K,
        num_warps=4, num_stages=3, enable_fp_fusion=False,
    )  # fmt: skip
    return out
