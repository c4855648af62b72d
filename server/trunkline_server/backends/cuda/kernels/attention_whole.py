"""Attention of tiles with many new tokens: a program goes through all splits of its rows in order and merges them."""

from __future__ import annotations

import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.attention_tile import (
    add_sink,
    attend,
    empty,
    first_products,
    last_seen,
    merge,
)
from trunkline_server.backends.cuda.kernels.numerics import narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous


@triton.jit
def whole_kernel(
    q, out, sinks, counts, items, query_begin, context_length, block_tables, pool, scales, means,
    q_stride, out_stride, table_stride, num_kv_heads, piece_elements, piece_scales, values_offset,
    values_scales_offset, first_keys_offset, first_scales_offset, means_stride, scale, soft_cap, window,
    GROUP: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
    DTYPE: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, MOVED: tl.constexpr, HAS_SINKS: tl.constexpr,
    SEES_ALL: tl.constexpr, MERGES_LATE: tl.constexpr,
):  # fmt: skip
    """Computes one tile of rows and one KV head; a tile's programs are neighbours. items: see `attention_plan`.

    MERGES_LATE: merges a split in front of the next one's first tile instead of behind its own last tile.
    """
    await_previous()
    index, head = tl.program_id(0) // num_kv_heads, tl.program_id(0) % num_kv_heads
    if index < tl.load(counts + 1):
        tokens: tl.constexpr = ROWS // GROUP
        entry = tl.load(items + index * 4)
        first_token = tl.load(items + index * 4 + 1)
        row_begin = tl.load(query_begin + entry)
        num_tokens = tl.load(query_begin + entry + 1) - row_begin
        context = tl.load(context_length + entry)
        rows, elements = tl.arange(0, ROWS), tl.arange(0, D_PAD)
        token = first_token + rows // GROUP
        q_head = head * GROUP + rows % GROUP
        is_row = (rows < tokens * GROUP) & (token < num_tokens)
        mask = is_row[:, None] & (elements < D)[None, :]
        row = (row_begin + token).to(tl.int64)
        queries = tl.load(q + (row * q_stride + q_head * D)[:, None] + elements[None, :], mask, other=0.0)
        positions = context - num_tokens + token
        first = context - num_tokens + first_token
        last = context - num_tokens + tl.minimum(first_token + tokens, num_tokens) - 1
        # The tiles that all rows see completely lie between those cut by the window and those on the diagonal.
        end = last_seen(last, context, window, SEES_ALL, HAS_WINDOW) + 1
        full_end = (last_seen(first, context, window, SEES_ALL, HAS_WINDOW) + 1) // TILE * TILE
        table = block_tables + entry.to(tl.int64) * table_stride
        maximum, total, mixed = empty(ROWS, D_PAD)
        split_maximum, split_total, split_mixed = empty(ROWS, D_PAD)
        begin = tl.maximum(first - window + 1, 0) // TILE * TILE if HAS_WINDOW else tl.zeros([], tl.int32)
        full_begin = 0
        if HAS_WINDOW:
            full_begin = tl.minimum(tl.cdiv(tl.maximum(last - window + 1, 0), TILE) * TILE, end)
            full_end = tl.maximum(full_end, full_begin)
        means += head * means_stride
        first_added = first_products(
            queries, begin, table, pool, scales, head, piece_elements, piece_scales, first_keys_offset,
            first_scales_offset, D, D_PAD, KIND, DTYPE,
        )  # fmt: skip
        begins, ends = (begin, full_begin, full_end), (full_begin, full_end, end)
        for part in tl.static_range(0 if HAS_WINDOW else 1, 3):
            for start in tl.range(begins[part], ends[part], TILE):
                if MERGES_LATE and start % SPLIT == 0:
                    maximum, total, mixed = merge(maximum, total, mixed, split_maximum, split_total, split_mixed)
                    split_maximum, split_total, split_mixed = empty(ROWS, D_PAD)
                split_maximum, split_total, split_mixed = attend(
                    split_maximum, split_total, split_mixed, queries, first_added, means, start, positions, table,
                    pool, scales, head, context,
                    piece_elements, piece_scales, values_offset, values_scales_offset, scale, soft_cap, window,
                    D, D_PAD, BLOCK, KIND, DTYPE, TILE, part != 1, HAS_WINDOW, HAS_CAP, MOVED, SEES_ALL,
                )  # fmt: skip
                if not MERGES_LATE and (start + TILE) % SPLIT == 0:
                    maximum, total, mixed = merge(maximum, total, mixed, split_maximum, split_total, split_mixed)
                    split_maximum, split_total, split_mixed = empty(ROWS, D_PAD)
        maximum, total, mixed = merge(maximum, total, mixed, split_maximum, split_total, split_mixed)
        if HAS_SINKS:
            maximum, total, mixed = add_sink(maximum, total, mixed, tl.load(sinks + q_head))
        # A padding row has seen nothing.
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + (row * out_stride + q_head * D)[:, None] + elements[None, :], narrow(mixed, OUT), mask)
