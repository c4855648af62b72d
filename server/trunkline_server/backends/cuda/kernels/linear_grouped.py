"""Products with grouped weights of 4 and 8 bits, whose elements are converted to bf16 or f16.

For few rows, `_grouped_kernel` reads the small weight once and converts it in registers. For many rows, the weight is
dequantised into a matrix by the same arithmetic and multiplied as a dense one. The bits equal those of the dense
product with the dequantised weight.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.card import Card, card_of
from trunkline_server.backends.cuda.kernels.grouped import Grouping, Groups, dequantized_rows, grouped_sum
from trunkline_server.backends.cuda.kernels.linear_dense import dense_linear
from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap
from trunkline_server.backends.cuda.kernels.product import (
    ProductEnd,
    Unsummed,
    make_partials,
    store_split,
)
from trunkline_server.backends.cuda.quantized.grouped import BLOCK_INPUTS, GroupedWeight

# With more rows, the tensor cores are the limit, and converting each element once is faster than once per tile.
MAX_REGISTER_ROWS = 128
# Larger weights (output heads) are not dequantised as a whole.
MAX_DEQUANTIZED_BYTES = 512 << 20
# Blocks of K that are loaded ahead, if a multiprocessor has room for two programs of 64 rows.
_STAGES, _ROOMY_BYTES = 4, 80 << 10


@triton.jit(do_not_specialize=["num_rows"])
def _grouped_kernel(
    x, weight, product_end, out, partials, num_outputs, num_rows, num_inputs, split_elements, x_stride, out_stride,
    NUM_SPLITS: tl.constexpr, G: tl.constexpr, DTYPE: tl.constexpr, OUT: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    await_previous()
    num_t_tiles = tl.cdiv(num_rows, BLOCK_T)
    n0 = tl.program_id(0) // num_t_tiles * BLOCK_N
    t0 = tl.program_id(0) % num_t_tiles * BLOCK_T
    split = tl.program_id(1)
    n = n0 + tl.arange(0, BLOCK_N)
    t = t0 + tl.arange(0, BLOCK_T)
    x_rows = x + t[:, None].to(tl.int64) * x_stride
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    first = split * split_elements
    acc = grouped_sum(
        acc, weight, n, n < num_outputs, x_rows, t < num_rows,
        first, min(first + split_elements, num_inputs), num_inputs, G, DTYPE, BLOCK_K,
    )  # fmt: skip
    store_split(
        acc, product_end, out, partials, split, n0, t0, num_outputs, num_rows, out_stride,
        NUM_SPLITS, OUT, BLOCK_N, BLOCK_T,
    )  # fmt: skip


def stages_on(card: Card) -> int:
    """Returns the number of blocks of K that are loaded ahead; the bits do not depend on it."""
    return _STAGES if card.half_shared_bytes >= _ROOMY_BYTES else _STAGES - 1


def grouped_linear(
    x: torch.Tensor,
    weight: GroupedWeight,
    end: ProductEnd,
    out: torch.Tensor,
    *,
    max_register_rows: int = MAX_REGISTER_ROWS,
) -> torch.Tensor | Unsummed:
    """Computes `dense_linear` with a grouped weight. max_register_rows: for tests; the bits do not depend on it."""
    plan, num_rows = weight.plan, x.shape[0]
    if weight.order is not None:
        x = torch.index_select(x, 1, weight.order)
    shape = weight.num_outputs, weight.num_inputs
    if num_rows > max_register_rows and math.prod(shape) * weight.dtype.itemsize <= MAX_DEQUANTIZED_BYTES:
        values = dequantized_rows(weight, None, torch.empty(shape, dtype=weight.dtype, device=x.device))
        return dense_linear(x, values, plan, end, out)
    block_t = max(16, min(triton.next_power_of_2(num_rows), 64))
    partials = out if plan.num_splits == 1 else make_partials(plan, num_rows, x.device)
    grid = (triton.cdiv(plan.num_outputs, 64) * triton.cdiv(num_rows, block_t), plan.num_splits)
    _grouped_kernel[grid](
        x, Groups.of(weight), end, out, partials,
        plan.num_outputs, num_rows, plan.num_inputs, plan.split_elements, x.stride(0), out.stride(0),
        NUM_SPLITS=plan.num_splits, G=Grouping.of(weight), DTYPE=TRITON_DTYPES[weight.dtype],
        OUT=TRITON_DTYPES[out.dtype], BLOCK_N=64, BLOCK_T=block_t, BLOCK_K=BLOCK_INPUTS,
        num_warps=4, num_stages=stages_on(card_of(x.device)), enable_fp_fusion=False, **overlap(x.device),
    )  # fmt: skip
    return out if plan.num_splits == 1 else Unsummed(partials, end, out)
