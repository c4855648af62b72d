"""Attention in parallel over splits: one program per tile of rows, split and KV head; others merge a row of a head.

`attention_decode` does the same in one launch where each sequence has one new token.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.attention_plan import SPLIT_FIELDS, AttentionPlan
from trunkline_server.backends.cuda.kernels.attention_tile import (
    add_sink,
    attend,
    empty,
    first_products,
    last_seen,
    merge,
)
from trunkline_server.backends.cuda.kernels.card import card_of
from trunkline_server.backends.cuda.kernels.numerics import INTERPRETED, TRITON_DTYPES, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap

# Number of programs that merge rows, for each query head.
_MERGE_PROGRAMS = 512
# Splits that are loaded at once at the end of a row, so that short contexts waste no loads.
FEW_SPLITS = 4


class Partials(NamedTuple):
    """Partial results of rows for each split.

    mixed: [P, H, D] f32; sums: [P, H, 2] f32, maximum and sum. arrivals: [P, G] i32, the splits of a row and KV head
    that `decode_kernel` has computed, zero before and after.
    """

    mixed: torch.Tensor
    sums: torch.Tensor
    arrivals: torch.Tensor


@triton.jit
def load_item(items, index, is_item):
    """Returns the fields of an item for a split, see `attention_plan`."""
    fields = ()
    for field in tl.static_range(7):
        loaded = tl.load(items + index * SPLIT_FIELDS + field, is_item, other=0)
        fields = fields + (loaded,)  # type: ignore[assignment]  # noqa: RUF005
    return fields


@triton.jit
def attend_split(
    queries, split, first, last, positions, context, table, head, kv, scoring, F: tl.constexpr, ROWS: tl.constexpr
):
    """Returns the state of rows at `positions` [ROWS], of which the outermost are first and last, after one split."""
    begin = split * F.SPLIT
    if F.HAS_WINDOW:
        begin = tl.maximum(begin, tl.maximum(first - scoring.window + 1, 0) // F.TILE * F.TILE)
    last_position = last_seen(last, context, scoring.window, F.SEES_ALL, F.HAS_WINDOW)
    end = tl.minimum(split * F.SPLIT + F.SPLIT, last_position + 1)
    first_added = first_products(queries, begin, table, head, kv, F)
    state = empty(ROWS, F.D_PAD)
    for start in tl.range(begin, end, F.TILE):
        state = attend(state, queries, first_added, start, positions, table, head, context, kv, scoring, F, True)
    return state


@triton.jit
def store_partial(partials, places, state, is_row, D: tl.constexpr, D_PAD: tl.constexpr):
    """Stores the states of rows after one split at their places [ROWS] among the partial results."""
    elements = tl.arange(0, D_PAD)
    mask = is_row[:, None] & (elements < D)[None, :]
    tl.store(partials.mixed + places[:, None] * D + elements[None, :], state[2], mask)
    tl.store(partials.sums + places * 2, state[0], is_row)
    tl.store(partials.sums + places * 2 + 1, state[1], is_row)


@triton.jit
def split_kernel(
    q, partials, counts, items, block_tables, kv, q_stride, table_stride, num_heads, scoring,
    F: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Computes partial results of splits. items: see `attention_plan`."""
    await_previous()
    GROUP: tl.constexpr = F.GROUP
    tokens: tl.constexpr = ROWS // GROUP
    num_kv_heads = num_heads // GROUP
    num_items = tl.load(counts) * num_kv_heads
    rows = tl.arange(0, ROWS)
    elements = tl.arange(0, F.D_PAD)
    item = load_item(items, tl.program_id(0) // num_kv_heads, tl.program_id(0) < num_items)
    for index in tl.range(tl.program_id(0), num_items, tl.num_programs(0)):
        head = index % num_kv_heads
        entry, first_token, split, first_partial, row_begin, num_tokens, context = item
        # Arrives while this item is computed.
        later = index + tl.num_programs(0)
        item = load_item(items, later // num_kv_heads, later < num_items)
        token = first_token + rows // GROUP
        q_head = head * GROUP + rows % GROUP
        is_row = (rows < tokens * GROUP) & (token < num_tokens)
        q_mask = is_row[:, None] & (elements < F.D)[None, :]
        q_rows = (row_begin + token).to(tl.int64) * q_stride + q_head * F.D
        queries = tl.load(q + q_rows[:, None] + elements[None, :], q_mask, other=0.0)
        first = context - num_tokens + first_token
        last = context - num_tokens + tl.minimum(first_token + tokens, num_tokens) - 1
        positions = context - num_tokens + token
        table = block_tables + entry.to(tl.int64) * table_stride
        state = attend_split(queries, split, first, last, positions, context, table, head, kv, scoring, F, ROWS)
        places = (first_partial + token).to(tl.int64) * num_heads + q_head
        store_partial(partials, places, state, is_row, F.D, F.D_PAD)


@triton.jit
def _merge_next(
    state, partials, begin, end, first, distance, num_heads, heads, is_head,
    D: tl.constexpr, D_PAD: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """Merges splits from `begin` on into the state of a row's heads: COUNT of them, or those before `end`."""
    elements = tl.arange(0, D_PAD)
    # The compiler keeps the order of loads, so all come before the first use.
    loaded = ()
    for ahead in tl.static_range(COUNT):
        split = begin + ahead
        is_split = is_head & (heads * 0 + split < end)
        partial = (first + split * distance).to(tl.int64) * num_heads + heads
        # From L2: other multiprocessors may have written them during this launch.
        maxima = tl.load(partials.sums + partial * 2, is_split, other=float("-inf"), cache_modifier=".cg")
        sums = tl.load(partials.sums + partial * 2 + 1, is_split, other=0.0, cache_modifier=".cg")
        mask = is_split[:, None] & (elements < D)[None, :]
        rows = partials.mixed + partial[:, None] * D + elements[None, :]
        mixtures = tl.load(rows, mask, other=0.0, cache_modifier=".cg")
        loaded = loaded + ((maxima, sums, mixtures),)  # type: ignore[assignment]  # noqa: RUF005
    for ahead in tl.static_range(COUNT):
        state = merge(state, loaded[ahead])
    return state


@triton.jit
def merge_row(
    out, partials, sinks, first, distance, num_splits, num_heads, heads, is_head,
    D: tl.constexpr, D_PAD: tl.constexpr, OUT: tl.constexpr, MANY: tl.constexpr, FEW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Merges the splits of a row's heads [HEADS] in order and writes them to the row `out`.

    first: the first partial result; distance: to the next one. So many splits are loaded at once: MANY while there are
    as many, then FEW.
    """
    elements = tl.arange(0, D_PAD)
    state = empty(heads.shape[0], D_PAD)
    first_few = num_splits // MANY * MANY
    for begin in tl.range(0, first_few, MANY):
        state = _merge_next(
            state, partials, begin, first_few, first, distance, num_heads, heads, is_head, D, D_PAD, MANY
        )
    for begin in tl.range(first_few, num_splits, FEW):
        state = _merge_next(
            state, partials, begin, num_splits, first, distance, num_heads, heads, is_head, D, D_PAD, FEW
        )
    if HAS_SINKS:
        state = add_sink(state, tl.load(sinks + heads, is_head, other=0.0))
    _, total, mixed = state
    mask = is_head[:, None] & (elements < D)[None, :]
    tl.store(out + heads[:, None] * D + elements[None, :], narrow(mixed / total[:, None], OUT), mask)


@triton.jit
def merge_kernel(
    out, partials, sinks, counts, merge_rows, out_stride, num_heads,
    D: tl.constexpr, D_PAD: tl.constexpr, OUT: tl.constexpr, MANY: tl.constexpr, FEW: tl.constexpr,
    HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Merges the splits of rows; program_id(1) is the query head."""
    await_previous()
    head = tl.program_id(1) + tl.arange(0, 1)
    for index in tl.range(tl.program_id(0), tl.load(counts + 2), tl.num_programs(0)):
        item = merge_rows + index * 4
        merge_row(
            out + tl.load(item).to(tl.int64) * out_stride, partials, sinks, tl.load(item + 1), tl.load(item + 2),
            tl.load(item + 3), num_heads, head, head >= 0, D, D_PAD, OUT, MANY, FEW, HAS_SINKS,
        )  # fmt: skip


def merge_options(num_merges: int, head_size: int, num_processors: int) -> dict[str, int]:
    """Returns the launch options of `merge_kernel`, on which the bits do not depend. num_merges: rows times heads.

    A few merges hide the memory's latency by loading many splits at once, others by running side by side.
    """
    num_warps = max(1, head_size // 128)
    if num_merges <= 4 * num_processors:
        return {"MANY": 32, "num_warps": min(4 * num_warps, 8)}
    return {"MANY": 16, "num_warps": num_warps}


def merge_splits(out: torch.Tensor, partials: Partials, plan: AttentionPlan, sinks: torch.Tensor | None = None) -> None:
    """Merges the partial results of a plan's rows into out [T, H * D]. sinks: [H] f32."""
    shape, num_rows = plan.shape, out.shape[0]
    options = merge_options(num_rows * shape.num_heads, shape.head_size, card_of(out.device).num_processors)
    if INTERPRETED.value:
        options["MANY"] = 2
    merge_kernel[(min(num_rows, _MERGE_PROGRAMS), shape.num_heads)](
        out, partials, partials.sums if sinks is None else sinks, plan.counts, plan.merge_rows, out.stride(0),
        shape.num_heads, D=shape.head_size, D_PAD=triton.next_power_of_2(shape.head_size),
        OUT=TRITON_DTYPES[out.dtype], FEW=1 if INTERPRETED.value else FEW_SPLITS, HAS_SINKS=sinks is not None,
        **options, enable_fp_fusion=False, **overlap(out.device),
    )  # fmt: skip
