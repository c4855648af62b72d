"""Attention over keys whose last elements are the value (arXiv:2405.04434), in the order of `attention_tile`.

A program computes rows of several heads, which share the only key head. It loads a tile of keys once, in two parts: the
rotated elements and the latent. Products with both give the scores, and the latent is also the value. A row of results
is so wide that a program has few rows, and as many in both kinds of kernels, so that they have the same bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.attention_plan import (
    SPLIT,
    SPLIT_FIELDS,
    AttentionPlan,
    AttentionShape,
    AttentionStep,
    rows_like,
)
from trunkline_server.backends.cuda.kernels.attention_split import merge_splits, store_partial
from trunkline_server.backends.cuda.kernels.attention_tile import empty, merge, reference_of, scale_of
from trunkline_server.backends.cuda.kernels.card import num_programs
from trunkline_server.backends.cuda.kernels.kv_elements import FLOAT, load_elements
from trunkline_server.backends.cuda.kernels.numerics import TRITON_DTYPES, dot, narrow

if TYPE_CHECKING:
    from trunkline_server.backends.cuda.kernels.attention import AttentionSpace
    from trunkline_server.backends.cuda.kv_pool import KvPool

# Rows (tokens times the heads of a program) and positions of a tile. The bits of attention depend on the positions.
ROWS = 32
TILE = 32
NUM_WARPS = 8
# So much is loaded ahead that the shared memory of every card holds it.
NUM_STAGES = 3
_LOG2_E = tl.constexpr(1.4426950408889634)


def latent_shape(num_heads: int, latent_size: int) -> AttentionShape:
    """Returns the shape of a plan: heads that a program computes together count as a group of a KV head."""
    group = max(size for size in range(1, min(num_heads, ROWS) + 1) if num_heads % size == 0)
    return AttentionShape(
        num_heads=num_heads, num_kv_heads=num_heads // group, head_size=latent_size, whole_rows=ROWS, split_rows=ROWS
    )


@triton.jit
def _load_queries(
    q, entry, first_token, head, step, q_stride,
    GROUP: tl.constexpr, ROTATED: tl.constexpr, LATENT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Returns both parts of an item's queries, their rows, heads and positions, and which rows exist."""
    row_begin = tl.load(step.query_begin + entry)
    num_tokens = tl.load(step.query_begin + entry + 1) - row_begin
    context = tl.load(step.context_length + entry)
    rows = tl.arange(0, ROWS)
    token = first_token + rows // GROUP
    q_head = head * GROUP + rows % GROUP
    is_row = (rows < ROWS // GROUP * GROUP) & (token < num_tokens)
    row = (row_begin + token).to(tl.int64)
    pointers = q + (row * q_stride + q_head * (ROTATED + LATENT))[:, None]
    rotated = tl.load(pointers + tl.arange(0, ROTATED)[None, :], is_row[:, None], other=0.0)
    content = tl.load(pointers + ROTATED + tl.arange(0, LATENT)[None, :], is_row[:, None], other=0.0)
    return rotated, content, row, token, q_head, context - num_tokens + token, is_row, num_tokens, context


@triton.jit
def _attend(
    state, rotated, content, start, positions, table, pool, context, piece_elements, scale,
    ROTATED: tl.constexpr, LATENT: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr, TILE: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Adds one tile of positions, from `start`, to the state of rows; see `attention_tile.attend`."""
    maximum, total, mixed = state
    key_positions = start + tl.arange(0, TILE)
    # Rows beyond the context are uninitialised and may hold NaN.
    is_known = key_positions < context
    if MASKED:
        blocks = tl.load(table + key_positions // BLOCK, is_known, other=0).to(tl.int64)
    else:
        blocks = tl.load(table + key_positions // BLOCK).to(tl.int64)
    keys = pool + (blocks * piece_elements + key_positions % BLOCK * (ROTATED + LATENT))[:, None]
    mask = is_known[:, None] if MASKED else None
    turned = load_elements(keys + tl.arange(0, ROTATED)[None, :], mask, FLOAT, DTYPE, TILE, ROTATED)
    latents = load_elements(keys + ROTATED + tl.arange(0, LATENT)[None, :], mask, FLOAT, DTYPE, TILE, LATENT)
    product = dot(rotated, tl.trans(turned), tl.zeros([rotated.shape[0], TILE], tl.float32))
    product = dot(content, tl.trans(latents), product)
    scores = product * (scale * _LOG2_E)
    if MASKED:
        scores = tl.where(key_positions[None, :] <= positions[:, None], scores, float("-inf"))
    both = tl.maximum(maximum, tl.ceil(tl.max(scores, axis=1)))
    reference = reference_of(both)
    weights = tl.exp2(scores - reference[:, None])
    before = scale_of(maximum, reference)
    total = total * before + tl.sum(weights, axis=1)
    mixed = dot(narrow(weights, DTYPE), latents, mixed * before[:, None])
    return both, total, mixed


@triton.jit
def latent_split_kernel(
    q, partials, counts, items, step, pool, q_stride, table_stride, num_heads, piece_elements, scale,
    GROUP: tl.constexpr, ROTATED: tl.constexpr, LATENT: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Computes partial results of splits; see `attention_split.split_kernel`."""
    num_groups = num_heads // GROUP
    num_items = tl.load(counts) * num_groups
    for index in tl.range(tl.program_id(0), num_items, tl.num_programs(0)):
        item = items + (index // num_groups) * SPLIT_FIELDS
        entry = tl.load(item)
        rotated, content, _, token, q_head, positions, is_row, num_tokens, context = _load_queries(
            q, entry, tl.load(item + 1), index % num_groups, step, q_stride, GROUP, ROTATED, LATENT, ROWS
        )
        split = tl.load(item + 2)
        last = context - num_tokens + tl.minimum(tl.load(item + 1) + ROWS // GROUP, num_tokens) - 1
        table = step.block_tables + entry.to(tl.int64) * table_stride
        state = empty(ROWS, LATENT)
        for start in tl.range(split * SPLIT, tl.minimum(split * SPLIT + SPLIT, last + 1), TILE):
            state = _attend(
                state, rotated, content, start, positions, table, pool, context, piece_elements, scale,
                ROTATED, LATENT, BLOCK, DTYPE, TILE, True,
            )  # fmt: skip
        places = (tl.load(item + 3) + token).to(tl.int64) * num_heads + q_head
        store_partial(partials, places, state, is_row, LATENT, LATENT)


@triton.jit
def latent_whole_kernel(
    q, out, counts, items, step, pool, q_stride, out_stride, table_stride, num_groups, piece_elements, scale,
    GROUP: tl.constexpr, ROTATED: tl.constexpr, LATENT: tl.constexpr, BLOCK: tl.constexpr, DTYPE: tl.constexpr,
    OUT: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """Goes through all splits of one tile of rows; see `attention_whole.whole_kernel`."""
    index = tl.program_id(0)
    head = index % num_groups
    index = index // num_groups
    if index < tl.load(counts + 1):
        entry = tl.load(items + index * 4)
        first_token = tl.load(items + index * 4 + 1)
        rotated, content, row, _, q_head, positions, is_row, num_tokens, context = _load_queries(
            q, entry, first_token, head, step, q_stride, GROUP, ROTATED, LATENT, ROWS
        )
        first = context - num_tokens + first_token
        end = context - num_tokens + tl.minimum(first_token + ROWS // GROUP, num_tokens)
        # All rows see these tiles completely.
        full_end = (first + 1) // TILE * TILE
        table = step.block_tables + entry.to(tl.int64) * table_stride
        state = empty(ROWS, LATENT)
        split = empty(ROWS, LATENT)
        begins, ends = (0, full_end), (full_end, end)
        for part in tl.static_range(2):
            for start in tl.range(begins[part], ends[part], TILE):
                split = _attend(
                    split, rotated, content, start, positions, table, pool, context, piece_elements, scale,
                    ROTATED, LATENT, BLOCK, DTYPE, TILE, part == 1,
                )  # fmt: skip
                if (start + TILE) % SPLIT == 0:
                    state = merge(state, split)
                    split = empty(ROWS, LATENT)
        _, total, mixed = merge(state, split)
        # A padding row has seen nothing.
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        columns = (row * out_stride + q_head * LATENT)[:, None] + tl.arange(0, LATENT)[None, :]
        tl.store(out + columns, narrow(mixed, OUT), is_row[:, None])


def latent_attention(
    query: torch.Tensor,
    pool: KvPool,
    layer: int,
    step: AttentionStep,
    plan: AttentionPlan,
    space: AttentionSpace,
    scale: float,
    out: torch.Tensor | None = None,
    *,
    decode_only: bool = False,
) -> torch.Tensor:
    """Implements `Ops.paged_attention` for a pool of keys with latents and a query [T, H * D]; see `paged_attention`.

    plan, space: of `latent_shape`. Returns [T, H * latent_size] in the query's dtype; padding rows are not written.
    """
    layout, shape, num_rows, num_entries = pool.layout, plan.shape, query.shape[0], step.context_length.shape[0]
    latent_size = layout.latent_size
    assert latent_size is not None and shape.head_size == latent_size, "the plan is that of the pool's latents"
    assert plan.window is None, "latent attention has no windows"
    assert space.max_partial_rows >= plan.max_partial_rows, "the plan was made for a larger space"
    out = rows_like(query, shape.num_heads * latent_size) if out is None else out
    if num_rows == 0:
        return out
    elements, table_stride = pool.elements(layer), step.block_tables.stride(0)
    constants: dict[str, object] = {
        "GROUP": shape.group, "ROTATED": layout.head_size - latent_size, "LATENT": latent_size,
        "BLOCK": layout.block_size, "DTYPE": TRITON_DTYPES[query.dtype], "ROWS": ROWS, "TILE": TILE, "SPLIT": SPLIT,
        "num_warps": NUM_WARPS, "num_stages": NUM_STAGES, "enable_fp_fusion": False,
    }  # fmt: skip
    if plan.max_partial_rows > 0:
        latent_split_kernel[(num_programs(query.device),)](
            query, space.partials, plan.counts, plan.split_items, step, elements, query.stride(0), table_stride,
            shape.num_heads, layout.piece_elements, scale, **constants,
        )  # fmt: skip
        merge_splits(out, space.partials, plan)
    if not decode_only:
        latent_whole_kernel[(plan.max_whole_items(num_rows, num_entries) * shape.num_kv_heads,)](
            query, out, plan.counts, plan.whole_items, step, elements, query.stride(0), out.stride(0), table_stride,
            shape.num_kv_heads, layout.piece_elements, scale, OUT=TRITON_DTYPES[out.dtype], **constants,
        )  # fmt: skip
    return out
