"""The activated product of gate and up, of which a program computes the same columns.

The sums, their rounding and the activation are those of `dense_linear` followed by an activation, and so are the bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from trunkline_server.backends.cuda.kernels.activation import activated
from trunkline_server.backends.cuda.kernels.card import card_of, copies_tensors, num_programs
from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, dot, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap
from trunkline_server.backends.cuda.kernels.product import GROUP_TILES, grouped_tile, is_describable
from trunkline_server.backends.cuda.kernels.product_plan import gated_tiles
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight


@triton.jit
def _rounded(acc, bias, n, num_outputs, HAS_BIAS: tl.constexpr, OUT: tl.constexpr):
    """Returns acc [BLOCK_N, BLOCK_T] with the bias, rounded to OUT as a product is, in f32."""
    if HAS_BIAS:
        acc += tl.load(bias + n, n < num_outputs, other=0.0)[:, None]
    return narrow(acc, OUT).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _gated_kernel(
    x, weight, bias, out, num_outputs, num_rows, num_inputs, x_stride, weight_stride, out_stride,
    KIND: tl.constexpr, HAS_BIAS: tl.constexpr, OUT: tl.constexpr, IS_TMA: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """weight: [2 N, K], gate before up. num_outputs: N."""
    await_previous()
    num_n_tiles, num_t_tiles = tl.cdiv(num_outputs, BLOCK_N), tl.cdiv(num_rows, BLOCK_T)
    for tile in range(tl.program_id(0), num_n_tiles * num_t_tiles, tl.num_programs(0)):
        n_tile, t_tile = grouped_tile(tile, num_n_tiles, num_t_tiles, GROUP)
        n0, t0 = n_tile * BLOCK_N, t_tile * BLOCK_T
        n = n0 + tl.arange(0, BLOCK_N)
        t = t0 + tl.arange(0, BLOCK_T)
        gate = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
        up = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
        if IS_TMA:
            for k in range(0, num_inputs, BLOCK_K):
                rows = x.load([t0, k]).T
                gate = dot(weight.load([n0, k]), rows, gate)
                up = dot(weight.load([n0 + num_outputs, k]), rows, up)
        else:
            gate_rows = weight + n[:, None].to(tl.int64) * weight_stride
            up_rows = gate_rows + num_outputs.to(tl.int64) * weight_stride
            x_rows = x + t[:, None].to(tl.int64) * x_stride
            for k in range(0, num_inputs, BLOCK_K):
                columns = (k + tl.arange(0, BLOCK_K))[None, :]
                is_inside = columns < num_inputs
                mask = (n < num_outputs)[:, None] & is_inside
                rows = tl.load(x_rows + columns, (t < num_rows)[:, None] & is_inside, other=0.0).T
                gate = dot(tl.load(gate_rows + columns, mask, other=0.0), rows, gate)
                up = dot(tl.load(up_rows + columns, mask, other=0.0), rows, up)
        gate = _rounded(gate, bias, n, num_outputs, HAS_BIAS, OUT)
        up = _rounded(up, bias + num_outputs, n, num_outputs, HAS_BIAS, OUT)
        offsets = t[None, :].to(tl.int64) * out_stride + n[:, None]
        result = narrow(activated(gate, KIND) * up, OUT)
        tl.store(out + offsets, result, (n < num_outputs)[:, None] & (t < num_rows)[None, :])


def is_gated(weight: DeviceWeight) -> bool:
    """Returns True if `gated_linear` takes the weight: dense, two stacked matrices of one shape, and not in splits."""
    sizes = {end - begin for begin, end in weight.slices.values()}
    return isinstance(weight, DenseWeight) and weight.plan.num_splits == 1 and sizes == {weight.num_outputs // 2}


def gated_linear(x: torch.Tensor, weight: DeviceWeight, kind: tl.constexpr, *, has_bias: bool = False) -> torch.Tensor:
    """Multiplies x [T, K] by gate and up of a weight [2 N, K] and returns activation(gate) * up, [T, N].

    x: `weight.dtype`, as is the result, which has the bits of `linear` and an activation. kind: `SILU` or `GELU`.
    """
    assert isinstance(weight, DenseWeight), "see is_gated"
    num_rows, num_outputs = x.shape[0], weight.num_outputs // 2
    out = torch.empty(num_rows, num_outputs, dtype=weight.dtype, device=x.device)
    if num_rows == 0:
        return out
    values, bias = weight.values, weight.bias if has_bias else None
    tiles = gated_tiles(num_rows, values.element_size(), card_of(x.device))
    is_tma = copies_tensors(x.device) and is_describable(x) and is_describable(values)
    num_tiles = triton.cdiv(num_outputs, tiles.block_n) * triton.cdiv(num_rows, tiles.block_t)
    _gated_kernel[(num_tiles if tiles.is_parallel else min(num_tiles, num_programs(x.device)),)](
        TensorDescriptor.from_tensor(x, [tiles.block_t, tiles.block_k]) if is_tma else x,
        TensorDescriptor.from_tensor(values, [tiles.block_n, tiles.block_k]) if is_tma else values,
        out if bias is None else bias, out, num_outputs, num_rows, weight.num_inputs,
        x.stride(0), values.stride(0), out.stride(0), KIND=kind.value, HAS_BIAS=bias is not None,
        OUT=TRITON_DTYPES[out.dtype], IS_TMA=is_tma, BLOCK_N=tiles.block_n, BLOCK_T=tiles.block_t,
        BLOCK_K=tiles.block_k, GROUP=GROUP_TILES, num_warps=tiles.num_warps, num_stages=tiles.num_stages,
        enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out
