"""Layers of experts: which rows use which experts, products with their matrices, and the sums of their outputs.

A row's route is one expert that it uses. Routes are sorted by expert on the device, so that each expert's matrix is
read once, and the host never learns how many rows an expert has. A product has a program for each tile of an expert's
rows and of its matrix; a tile's place in that order affects no bits, because each output is summed over K in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.card import card_of
from trunkline_server.backends.cuda.kernels.grouped import Grouping, Groups, grouped_sum
from trunkline_server.backends.cuda.kernels.linear_grouped import stages_on
from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, narrow
from trunkline_server.backends.cuda.kernels.product import loaded_sum
from trunkline_server.backends.cuda.quantized.grouped import BLOCK_INPUTS, GroupedWeight
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight

BLOCK_N, BLOCK_K = 64, 64
# Rows of a tile, if experts have few rows on average, or many.
FEW_ROWS, MANY_ROWS = 16, 64
_BLOCK = 1024
# The constants of a dense weight.
_DENSE = Grouping(BITS=16, ZERO_POINT=0, IS_E4M3=False, GROUP=1)


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of a step's rows in one layer, R = T * num_used of them, row by row.

    weights: [T, num_used] f32. places: [R] i32, of each route among the sorted ones. order: [R] i32, the route at each
    place. begins: [E + 1] i32, the first place of each expert. Routes of padding rows are behind the last expert's.
    """

    weights: torch.Tensor
    places: torch.Tensor
    order: torch.Tensor
    begins: torch.Tensor

    @property
    def num_used(self) -> int:
        return self.weights.shape[1]

    @property
    def num_experts(self) -> int:
        return self.begins.shape[0] - 1


@triton.jit
def _of_best_groups(scores, columns, size, GROUPS: tl.constexpr, USED: tl.constexpr, SUMS_TWO: tl.constexpr):
    """Returns scores with -inf for experts outside the best groups. SUMS_TWO: a group counts by its two best."""
    group = columns // size
    group_scores = tl.full(scores.shape, float("-inf"), tl.float32)
    for number in tl.static_range(GROUPS):
        members = tl.where(group == number, scores, float("-inf"))
        best = tl.argmax(members, axis=0)
        total = tl.max(members, axis=0)
        if SUMS_TWO:
            second = tl.max(tl.where(columns == best, float("-inf"), members), axis=0)
            # The sum of two numbers that stand for NaN is not that of no expert.
            total = tl.maximum(total, -1.0e38) + tl.maximum(second, -1.0e38)
        group_scores = tl.where(group == number, total, group_scores)
    is_chosen = columns < 0
    for _ in tl.static_range(USED):
        chosen = tl.argmax(group_scores, axis=0) // size
        is_chosen = is_chosen | (group == chosen)
        group_scores = tl.where(group == chosen, float("-inf"), group_scores)
    return tl.where(is_chosen, scores, float("-inf"))


@triton.jit
def _route_kernel(
    logits, row_entry, weights, experts, bias, logits_stride, num_experts,
    NUM_USED: tl.constexpr, RENORMALISE: tl.constexpr, EXPERTS: tl.constexpr, SIGMOID: tl.constexpr,
    HAS_BIAS: tl.constexpr, GROUPS: tl.constexpr, USED_GROUPS: tl.constexpr,
):  # fmt: skip
    """Chooses the experts of row program_id(0); a padding row gets expert `num_experts`, which does not exist."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, EXPERTS)
    is_expert = columns < num_experts
    logit = tl.load(logits + row * logits_stride + columns, is_expert, other=float("-inf")).to(tl.float32)
    is_padding = tl.load(row_entry + row) < 0
    largest = tl.max(tl.where(logit == logit, logit, float("-inf")), axis=0)
    mass = 1.0 / (1.0 + tl.exp(-logit)) if SIGMOID else tl.exp(logit - largest)
    score = mass if SIGMOID else logit
    if HAS_BIAS:
        score += tl.load(bias + columns, is_expert, other=0.0)
    # NaN is smaller than any number, but not than an expert that does not exist or is chosen already.
    left = tl.where(score == score, tl.maximum(score, -3.0e38), -3.2e38)
    left = tl.where(is_expert, left, float("-inf"))
    if USED_GROUPS < GROUPS:
        left = _of_best_groups(left, columns, num_experts // GROUPS, GROUPS, USED_GROUPS, SIGMOID)
    is_counted = is_expert
    if RENORMALISE:
        is_counted = columns < 0
        rest = left
        for _ in tl.static_range(NUM_USED):
            best = tl.argmax(rest, axis=0)
            is_counted = is_counted | (columns == best)
            rest = tl.where(columns == best, float("-inf"), rest)
    total = tl.sum(tl.where(is_counted, mass, 0.0), axis=0)
    if SIGMOID:
        total = total + 1e-20 if RENORMALISE else total * 0.0 + 1.0
    for number in tl.static_range(NUM_USED):
        best = tl.argmax(left, axis=0)
        weight = tl.sum(tl.where(columns == best, mass, 0.0), axis=0) / total
        left = tl.where(columns == best, float("-inf"), left)
        tl.store(weights + row * NUM_USED + number, weight)
        tl.store(experts + row * NUM_USED + number, tl.where(is_padding, num_experts, best).to(tl.int32))


def route(
    router_logits: torch.Tensor,
    row_entry: torch.Tensor,
    num_used: int,
    *,
    renormalise: bool,
    sigmoid: bool = False,
    choice_bias: torch.Tensor | None = None,
    num_groups: int = 1,
    num_used_groups: int = 1,
) -> Routes:
    """Chooses each row's experts and sorts them.

    router_logits: [T, E], rows contiguous; row_entry: [T] i32, negative for padding rows; choice_bias: [E] f32. See
    `models.ops.Experts`.
    """
    num_rows, num_experts = router_logits.shape
    device = router_logits.device
    weights = torch.empty(num_rows, num_used, dtype=torch.float32, device=device)
    experts = torch.empty(num_rows * num_used, dtype=torch.int32, device=device)
    _route_kernel[(num_rows,)](
        router_logits, row_entry, weights, experts, weights if choice_bias is None else choice_bias,
        router_logits.stride(0), num_experts,
        NUM_USED=num_used, RENORMALISE=renormalise, EXPERTS=triton.next_power_of_2(num_experts), SIGMOID=sigmoid,
        HAS_BIAS=choice_bias is not None, GROUPS=num_groups, USED_GROUPS=num_used_groups,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    by_expert, order = torch.sort(experts, stable=True)
    numbers = torch.arange(num_experts + 1, dtype=torch.int32, device=device)
    begins = torch.searchsorted(by_expert, numbers, out_int32=True)
    places = torch.empty_like(experts)
    places.scatter_(0, order, torch.arange(len(experts), dtype=torch.int32, device=device))
    return Routes(weights, places, order.to(torch.int32), begins)


@triton.jit
def _places(tile, begins, num_experts, EXPERTS: tl.constexpr, BLOCK_T: tl.constexpr):
    """Returns the expert of a tile of sorted rows, the places of its rows [BLOCK_T], and which of them it has.

    There is no such tile if the expert is not below `num_experts`.
    """
    experts = tl.arange(0, EXPERTS)
    is_expert = experts < num_experts
    first = tl.load(begins + experts, is_expert, other=0)
    counts = tl.load(begins + experts + 1, is_expert, other=0) - first
    tiles = tl.cdiv(counts, BLOCK_T)
    tile_ends = tl.cumsum(tiles, axis=0)
    expert = tl.sum((tile_ends <= tile).to(tl.int32), axis=0)
    is_mine = experts == expert
    tile_begin = tl.sum(tl.where(is_mine, tile_ends - tiles, 0), axis=0)
    begin = tl.sum(tl.where(is_mine, first, 0), axis=0)
    places = begin + (tile - tile_begin) * BLOCK_T + tl.arange(0, BLOCK_T)
    return expert, places, places < begin + tl.sum(tl.where(is_mine, counts, 0), axis=0)


@triton.jit
def _product_kernel(
    x, weight, bias, order, begins, out, num_experts, num_outputs, num_inputs, x_stride, out_stride,
    ROUTES_PER_ROW: tl.constexpr, G: tl.constexpr, DTYPE: tl.constexpr, OUT: tl.constexpr, EXPERTS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Computes tile program_id(0) of the sorted rows and tile program_id(1) of its expert's outputs.

    weight: `Groups`; if G has 16 bits, its quants are the elements of a dense weight.
    """
    expert, places, is_place = _places(tl.program_id(0), begins, num_experts, EXPERTS, BLOCK_T)
    if expert >= num_experts:
        return
    rows = places
    if ROUTES_PER_ROW > 0:
        rows = tl.load(order + places, is_place, other=0) // ROUTES_PER_ROW
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    n_mask = n < num_outputs
    weight_rows = expert * num_outputs + n
    x_rows = x + rows[:, None].to(tl.int64) * x_stride
    acc = tl.zeros((BLOCK_N, BLOCK_T), dtype=tl.float32)
    if G.BITS == 16:
        pointers = weight.quants + weight_rows[:, None].to(tl.int64) * weight.quants_stride
        acc = loaded_sum(acc, pointers, n_mask, x_rows, is_place, 0, num_inputs, num_inputs, BLOCK_K)
    else:
        acc = grouped_sum(
            acc, weight, weight_rows, n_mask, x_rows, is_place, 0, num_inputs, num_inputs, G, DTYPE, BLOCK_K
        )
    if bias is not None:
        acc += tl.load(bias + weight_rows, n_mask, other=0.0)[:, None]
    offsets = places[None, :].to(tl.int64) * out_stride + n[:, None]
    tl.store(out + offsets, narrow(acc, OUT), n_mask[:, None] & is_place[None, :])


def _tiles(routes: Routes) -> tuple[int, int]:
    """Returns the rows of a tile, and the most tiles that a step has."""
    num_routes, num_experts = len(routes.order), routes.num_experts
    block_t = FEW_ROWS if num_routes <= FEW_ROWS * num_experts else MANY_ROWS
    # Every expert may end with a tile that is not full.
    return block_t, min(num_routes, triton.cdiv(num_routes, block_t) + num_experts)


def expert_product(
    x: torch.Tensor, weight: DeviceWeight, routes: Routes, *, is_sorted: bool, out_dtype: torch.dtype
) -> torch.Tensor:
    """Multiplies each route's row of x with its expert's matrix, and adds the expert's bias.

    x: [T, K], or [R, K] in the order of places if `is_sorted`, of `weight.dtype`; weight: [E * N, K], dense or grouped,
    columns in the order of x. Returns [R, N] in the order of places; rows of padding are not written.
    """
    num_routes, num_experts = len(routes.order), routes.num_experts
    num_outputs = weight.num_outputs // num_experts
    assert num_outputs * num_experts == weight.num_outputs, "a matrix for each expert"
    out = torch.empty(num_routes, num_outputs, dtype=out_dtype, device=x.device)
    block_t, num_tiles = _tiles(routes)
    if isinstance(weight, GroupedWeight):
        assert weight.order is None, "columns in another order"
        groups, grouping, block_k = Groups.of(weight), Grouping.of(weight), BLOCK_INPUTS
        num_stages = stages_on(card_of(x.device))
    else:
        assert isinstance(weight, DenseWeight), "the loader makes no others"
        values = weight.values
        groups, grouping, block_k = Groups(values, values, None, None, None, values.stride(0), 0), _DENSE, BLOCK_K
        num_stages = 3
    _product_kernel[(num_tiles, triton.cdiv(num_outputs, BLOCK_N))](
        x, groups, weight.bias, routes.order, routes.begins, out, num_experts, num_outputs, weight.num_inputs,
        x.stride(0), out.stride(0), ROUTES_PER_ROW=0 if is_sorted else routes.num_used, G=grouping,
        DTYPE=TRITON_DTYPES[weight.dtype], OUT=TRITON_DTYPES[out_dtype], EXPERTS=triton.next_power_of_2(num_experts),
        BLOCK_N=BLOCK_N, BLOCK_T=block_t, BLOCK_K=block_k, num_warps=4, num_stages=num_stages, enable_fp_fusion=False,
    )  # fmt: skip
    return out


@triton.jit
def _combine_kernel(
    outputs, weights, places, row_entry, out, num_elements,
    NUM_USED: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    # A padding row reads nothing.
    mask = columns < tl.where(tl.load(row_entry + row) < 0, 0, num_elements)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for number in tl.static_range(NUM_USED):
        place = tl.load(places + row * NUM_USED + number).to(tl.int64)
        weight = tl.load(weights + row * NUM_USED + number)
        total += weight * tl.load(outputs + place * num_elements + columns, mask, other=0.0)
    tl.store(out + row * num_elements + columns, narrow(total, OUT), columns < num_elements)


def combine(outputs: torch.Tensor, routes: Routes, row_entry: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Adds the outputs of each row's experts, times their weights, in the order of choices.

    outputs: [R, N] f32, in the order of places. Returns [T, N] in `dtype`, 0 for padding rows.
    """
    num_rows, width = routes.weights.shape[0], outputs.shape[1]
    out = torch.empty(num_rows, width, dtype=dtype, device=outputs.device)
    _combine_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
        outputs, routes.weights, routes.places, row_entry, out, width,
        NUM_USED=routes.num_used, OUT=TRITON_DTYPES[dtype], BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
