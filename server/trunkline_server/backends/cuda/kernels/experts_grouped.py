"""Products of experts whose weights have 4 or 8 bits; elements are converted in registers, as for other weights."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.card import card_of
from trunkline_server.backends.cuda.kernels.experts import BLOCK_N, Routes, places_of, tiles_of
from trunkline_server.backends.cuda.kernels.grouped import group_elements, weight_arguments, weight_constants
from trunkline_server.backends.cuda.kernels.linear_grouped import stages_on
from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, dot, narrow
from trunkline_server.backends.cuda.quantized.grouped import BLOCK_INPUTS, GroupedWeight


@triton.jit
def _grouped_product_kernel(
    x, quants, scales, zeros, minima, table, bias, order, begins, out,
    num_experts, num_outputs, num_inputs, x_stride, quants_stride, groups_stride, out_stride,
    HAS_BIAS: tl.constexpr, ROUTES_PER_ROW: tl.constexpr, BITS: tl.constexpr, HAS_TABLE: tl.constexpr,
    ZERO_POINT: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMA: tl.constexpr, IS_E4M3: tl.constexpr,
    GROUP: tl.constexpr, DTYPE: tl.constexpr, OUT: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes tile program_id(0) of the sorted rows and tile program_id(1) of its expert's outputs."""
    expert, places, is_place = places_of(tl.program_id(0), begins, num_experts, EXPERTS, BLOCK_T)
    if expert >= num_experts:
        return
    rows = places
    if ROUTES_PER_ROW > 0:
        rows = tl.load(order + places, is_place, other=0) // ROUTES_PER_ROW
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = n < num_outputs
    weight_rows = expert * num_outputs + n
    # Bytes of a block, and the elements of it that one product takes.
    WIDTH: tl.constexpr = BLOCK_K // 2 if BITS == 4 else BLOCK_K
    quants_rows = quants + weight_rows[:, None].to(tl.int64) * quants_stride + tl.arange(0, WIDTH)[None, :]
    x_rows = x + rows[:, None].to(tl.int64) * x_stride
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    for k0 in range(0, num_inputs, BLOCK_K):
        packed = tl.load(quants_rows + k0 // BLOCK_K * WIDTH, n_mask[:, None], other=0)
        for half in tl.static_range(8 // BITS):
            k = k0 + half * WIDTH
            part = ((packed >> (4 * half)) & 0x0F) if BITS == 4 else packed
            weights = group_elements(
                part, scales, zeros, minima, table, weight_rows, n_mask, groups_stride, k,
                HAS_TABLE, ZERO_POINT, HAS_ZEROS, HAS_MINIMA, IS_E4M3, BLOCK_N, WIDTH, GROUP,
            )  # fmt: skip
            columns = (k + tl.arange(0, WIDTH))[None, :]
            values = tl.load(x_rows + columns, is_place[:, None] & (columns < num_inputs), other=0.0)
            acc = dot(narrow(weights, DTYPE), values.T, acc)
    if HAS_BIAS:
        acc += tl.load(bias + weight_rows, n_mask, other=0.0)[:, None]
    offsets = places[None, :].to(tl.int64) * out_stride + n[:, None]
    tl.store(out + offsets, narrow(acc, OUT), n_mask[:, None] & is_place[None, :])


def grouped_expert_product(
    x: torch.Tensor, weight: GroupedWeight, routes: Routes, *, is_sorted: bool, out_dtype: torch.dtype
) -> torch.Tensor:
    """Computes `expert_product` with a grouped weight [E * N, K], whose columns are in the order of x."""
    assert weight.order is None, "columns in another order"
    num_routes, num_experts = len(routes.order), routes.num_experts
    num_outputs = weight.num_outputs // num_experts
    out = torch.empty(num_routes, num_outputs, dtype=out_dtype, device=x.device)
    block_t, num_tiles = tiles_of(routes)
    _grouped_product_kernel[(num_tiles, triton.cdiv(num_outputs, BLOCK_N))](
        x, *weight_arguments(weight), weight.scales if weight.bias is None else weight.bias, routes.order,
        routes.begins, out, num_experts, num_outputs, weight.num_inputs,
        x.stride(0), weight.quants.stride(0), weight.scales.stride(0), out.stride(0),
        HAS_BIAS=weight.bias is not None, ROUTES_PER_ROW=0 if is_sorted else routes.num_used,
        **weight_constants(weight), DTYPE=TRITON_DTYPES[weight.dtype], OUT=TRITON_DTYPES[out_dtype],
        EXPERTS=triton.next_power_of_2(num_experts), BLOCK_N=BLOCK_N, BLOCK_T=block_t, BLOCK_K=BLOCK_INPUTS,
        num_warps=4, num_stages=stages_on(card_of(x.device)), enable_fp_fusion=False,
    )  # fmt: skip
    return out
