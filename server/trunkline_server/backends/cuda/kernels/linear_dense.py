"""Products of two matrices of bf16 or f16 (or e4m3, i8, f32), whose bits do not depend on the number of rows.

`product_plan.py` describes what they depend on. Two kernels share one order of sums. For few rows, each tile and split
has a program; the weight is read once, at the memory's speed, and a second launch adds the splits if there are several.
For many rows, each SM has a program that takes tile after tile and adds the splits itself. Tiles are loaded by TMA if
the device has it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from trunkline_server.backends.cuda.kernels.card import card_of, copies_tensors, num_programs
from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, dot
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap
from trunkline_server.backends.cuda.kernels.product import (
    GROUP_TILES,
    ProductEnd,
    Unsummed,
    grouped_tile,
    is_describable,
    loaded_sum,
    make_partials,
    store_split,
    store_tile,
)
from trunkline_server.backends.cuda.kernels.product_plan import ProductPlan, Tiles


@triton.jit
def _split_sum(
    x, weight, n0, t0, first, end, num_outputs, num_rows, num_inputs, x_stride, weight_stride,
    IS_TMA: tl.constexpr, IS_INT8: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Returns [BLOCK_N, BLOCK_T] f32, the products of elements `first` to `end` of K."""
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.int32 if IS_INT8 else tl.float32)
    if IS_TMA:
        for k in range(first, end, BLOCK_K):
            acc = dot(weight.load([n0, k]), x.load([t0, k]).T, acc)
    else:
        n = n0 + tl.arange(0, BLOCK_N)
        t = t0 + tl.arange(0, BLOCK_T)
        weight_rows = weight + n[:, None].to(tl.int64) * weight_stride
        x_rows = x + t[:, None].to(tl.int64) * x_stride
        acc = loaded_sum(acc, weight_rows, n < num_outputs, x_rows, t < num_rows, first, end, num_inputs, BLOCK_K)
    return acc.to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _parallel_kernel(
    x, weight, product_end, out, partials,
    num_outputs, num_rows, num_inputs, split_elements, x_stride, weight_stride, out_stride,
    NUM_SPLITS: tl.constexpr, OUT: tl.constexpr, IS_TMA: tl.constexpr, IS_INT8: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    await_previous()
    # Programs that read the same weight rows are neighbours.
    num_t_tiles = tl.cdiv(num_rows, BLOCK_T)
    n0 = tl.program_id(0) // num_t_tiles * BLOCK_N
    t0 = tl.program_id(0) % num_t_tiles * BLOCK_T
    split = tl.program_id(1)
    first = split * split_elements
    end = min(first + split_elements, num_inputs)
    acc = _split_sum(
        x, weight, n0, t0, first, end, num_outputs, num_rows, num_inputs, x_stride, weight_stride,
        IS_TMA, IS_INT8, BLOCK_N, BLOCK_T, BLOCK_K,
    )  # fmt: skip
    store_split(
        acc, product_end, out, partials, split, n0, t0, num_outputs, num_rows, out_stride,
        NUM_SPLITS, OUT, BLOCK_N, BLOCK_T,
    )  # fmt: skip


@triton.jit
def _halves(x):
    """Returns the left and the right half of x [N, T]."""
    return x.reshape(x.shape[0], 2, x.shape[1] // 2).permute(0, 2, 1).split()


@triton.jit(do_not_specialize=["num_rows"])
def _persistent_kernel(
    x, weight, product_end, out, sums,
    num_outputs, num_rows, num_inputs, split_elements, x_stride, weight_stride, out_stride,
    NUM_SPLITS: tl.constexpr, OUT: tl.constexpr, IS_TMA: tl.constexpr, IS_INT8: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, IS_FLAT: tl.constexpr,
):  # fmt: skip
    await_previous()
    num_n_tiles, num_t_tiles = tl.cdiv(num_outputs, BLOCK_N), tl.cdiv(num_rows, BLOCK_T)
    quarter: tl.constexpr = BLOCK_T // 4
    places = tl.arange(0, BLOCK_N)[:, None] * BLOCK_T + tl.arange(0, quarter)[None, :]
    mine = sums + tl.program_id(0) * (BLOCK_N * BLOCK_T) + places
    num_tiles = tl.cdiv(num_n_tiles * num_t_tiles - tl.program_id(0), tl.num_programs(0))
    # One loop over tiles and splits: in a loop within, the compiler keeps addresses of results in registers meanwhile.
    # If IS_FLAT, which takes more shared memory, and without splits, the next tile is read while a result is written.
    for item in tl.range(num_tiles * NUM_SPLITS, flatten=IS_FLAT):
        tile = tl.program_id(0) + item // NUM_SPLITS * tl.num_programs(0)
        n_tile, t_tile = grouped_tile(tile, num_n_tiles, num_t_tiles, GROUP)
        n0, t0 = n_tile * BLOCK_N, t_tile * BLOCK_T
        split = item % NUM_SPLITS
        first = split * split_elements
        acc = _split_sum(
            x, weight, n0, t0, first, min(first + split_elements, num_inputs), num_outputs, num_rows, num_inputs,
            x_stride, weight_stride, IS_TMA, IS_INT8, BLOCK_N, BLOCK_T, BLOCK_K,
        )  # fmt: skip
        if NUM_SPLITS == 1:
            store_tile(acc, product_end, out, n0, t0, num_outputs, num_rows, out_stride, OUT, BLOCK_N, BLOCK_T)
        else:
            # The sum so far is in the L2 cache; registers have room for a quarter of it beside the accumulator.
            left, right = _halves(acc)
            parts = _halves(left) + _halves(right)
            for number in tl.static_range(4):
                part = parts[number]
                column = number * quarter
                if split > 0:
                    part = tl.load(mine + column, cache_modifier=".cg") + part
                if split < NUM_SPLITS - 1:
                    tl.store(mine + column, part, cache_modifier=".cg")
                else:
                    store_tile(
                        part,
                        product_end,
                        out,
                        n0,
                        t0 + column,
                        num_outputs,
                        num_rows,
                        out_stride,
                        OUT,
                        BLOCK_N,
                        quarter,
                    )
            # Another thread may read what this one has written.
            tl.debug_barrier()


def dense_linear(
    x: torch.Tensor,
    values: torch.Tensor,
    plan: ProductPlan,
    end: ProductEnd,
    out: torch.Tensor,
    *,
    tiles: Tiles | None = None,
    is_tma: bool | None = None,
) -> torch.Tensor | Unsummed:
    """Multiplies x [T, K] by the transpose of values [N, K]; the result is for `summed`, which writes out [T, N].

    x, values: of one dtype, rows contiguous. plan: of the weight. tiles, is_tma: how to compute it, for tests; the bits
    do not depend on them.
    """
    num_rows = x.shape[0]
    tiles = plan.tiles(num_rows, values.element_size(), card_of(x.device)) if tiles is None else tiles
    is_describable_both = is_describable(x) and is_describable(values)
    is_tma = copies_tensors(x.device) if is_tma is None else is_tma
    is_tma = is_tma and is_describable_both
    shared: dict[str, object] = {
        "NUM_SPLITS": plan.num_splits,
        "OUT": TRITON_DTYPES[out.dtype],
        "IS_TMA": is_tma,
        "IS_INT8": values.dtype == torch.int8,
        "BLOCK_N": tiles.block_n,
        "BLOCK_T": tiles.block_t,
        "BLOCK_K": tiles.block_k,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
        "enable_fp_fusion": False,
        **overlap(x.device),
    }
    num_tiles = triton.cdiv(plan.num_outputs, tiles.block_n) * triton.cdiv(num_rows, tiles.block_t)
    tile_of_x = TensorDescriptor.from_tensor(x, [tiles.block_t, tiles.block_k]) if is_tma else x
    tile_of_weight = TensorDescriptor.from_tensor(values, [tiles.block_n, tiles.block_k]) if is_tma else values
    sizes = (plan.num_outputs, num_rows, plan.num_inputs, plan.split_elements)
    strides = (x.stride(0), values.stride(0), out.stride(0))
    if not tiles.is_parallel:
        programs = min(num_tiles, num_programs(x.device))
        size = programs * tiles.block_n * tiles.block_t if plan.num_splits > 1 else 0
        sums = torch.empty(size, dtype=torch.float32, device=x.device)
        _persistent_kernel[(programs,)](
            tile_of_x, tile_of_weight, end, out, sums, *sizes, *strides, **shared, GROUP=GROUP_TILES,
            IS_FLAT=card_of(x.device).products_are_async,
        )  # fmt: skip
        return out
    partials = out if plan.num_splits == 1 else make_partials(plan, num_rows, x.device)
    grid = (num_tiles, plan.num_splits)
    _parallel_kernel[grid](tile_of_x, tile_of_weight, end, out, partials, *sizes, *strides, **shared)
    return out if plan.num_splits == 1 else Unsummed(partials, end, out)
