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
    q, out, sinks, counts, items, step, kv, q_stride, out_stride, table_stride, num_kv_heads, scoring,
    F: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, HAS_SINKS: tl.constexpr, MERGES_LATE: tl.constexpr,
):  # fmt: skip
    """Computes one tile of rows and one KV head; a tile's programs are neighbours. items: see `attention_plan`.

    MERGES_LATE: merges a split in front of the next one's first tile instead of behind its own last tile.
    """
    await_previous()
    GROUP: tl.constexpr = F.GROUP
    TILE: tl.constexpr = F.TILE
    window = scoring.window
    index, head = tl.program_id(0) // num_kv_heads, tl.program_id(0) % num_kv_heads
    if index < tl.load(counts + 1):
        tokens: tl.constexpr = ROWS // GROUP
        entry = tl.load(items + index * 4)
        first_token = tl.load(items + index * 4 + 1)
        row_begin = tl.load(step.query_begin + entry)
        num_tokens = tl.load(step.query_begin + entry + 1) - row_begin
        context = tl.load(step.context_length + entry)
        rows, elements = tl.arange(0, ROWS), tl.arange(0, F.D_PAD)
        token = first_token + rows // GROUP
        q_head = head * GROUP + rows % GROUP
        is_row = (rows < tokens * GROUP) & (token < num_tokens)
        mask = is_row[:, None] & (elements < F.D)[None, :]
        row = (row_begin + token).to(tl.int64)
        queries = tl.load(q + (row * q_stride + q_head * F.D)[:, None] + elements[None, :], mask, other=0.0)
        positions = context - num_tokens + token
        first = context - num_tokens + first_token
        last = context - num_tokens + tl.minimum(first_token + tokens, num_tokens) - 1
        # The tiles that all rows see completely lie between those cut by the window and those on the diagonal.
        end = last_seen(last, context, window, F.SEES_ALL, F.HAS_WINDOW) + 1
        full_end = (last_seen(first, context, window, F.SEES_ALL, F.HAS_WINDOW) + 1) // TILE * TILE
        table = step.block_tables + entry.to(tl.int64) * table_stride
        state = empty(ROWS, F.D_PAD)
        split = empty(ROWS, F.D_PAD)
        begin = tl.maximum(first - window + 1, 0) // TILE * TILE if F.HAS_WINDOW else tl.zeros([], tl.int32)
        full_begin = 0
        if F.HAS_WINDOW:
            full_begin = tl.minimum(tl.cdiv(tl.maximum(last - window + 1, 0), TILE) * TILE, end)
            full_end = tl.maximum(full_end, full_begin)
        first_added = first_products(queries, begin, table, head, kv, F)
        begins, ends = (begin, full_begin, full_end), (full_begin, full_end, end)
        for part in tl.static_range(0 if F.HAS_WINDOW else 1, 3):
            for start in tl.range(begins[part], ends[part], TILE):
                if MERGES_LATE and start % F.SPLIT == 0:
                    state = merge(state, split)
                    split = empty(ROWS, F.D_PAD)
                split = attend(
                    split, queries, first_added, start, positions, table, head, context, kv, scoring, F, part != 1
                )
                if not MERGES_LATE and (start + TILE) % F.SPLIT == 0:
                    state = merge(state, split)
                    split = empty(ROWS, F.D_PAD)
        state = merge(state, split)
        if HAS_SINKS:
            state = add_sink(state, tl.load(sinks + q_head))
        _, total, mixed = state
        # A padding row has seen nothing.
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(out + (row * out_stride + q_head * F.D)[:, None] + elements[None, :], narrow(mixed, OUT), mask)
