"""Attention of sequences with one new token each, in one launch with the write of its K and V and the merge of splits.

The sums, their order and their rounding are those of `rope_and_write_kv` and `paged_attention`, and so are the bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.attention import AttentionSpace, shared_arguments, split_launch
from trunkline_server.backends.cuda.kernels.attention_plan import SPLIT_ROWS, AttentionPlan, AttentionStep, rows_like
from trunkline_server.backends.cuda.kernels.attention_split import (
    FEW_SPLITS,
    attend_split,
    load_item,
    merge_row,
    store_partial,
)
from trunkline_server.backends.cuda.kernels.numerics import INTERPRETED, TRITON_DTYPES, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous
from trunkline_server.backends.cuda.kernels.rope_kv import RopeTables, rotated, store_elements

if TYPE_CHECKING:
    from trunkline_server.backends.cuda.kv_pool import KvPool

# This switch sends decodes to the kernel below; see docs/gpu.md.
JOINS_DECODES = True
# With wider heads the kernel needs more registers than there are, and waits for each product.
_MAX_HEAD_SIZE = 128
# Elements of splits that a program loads at once while it merges a long context, 64 for each of its threads.
_MERGED_ELEMENTS = 8192


@triton.jit
def _write_row(
    k, v, row, position, tables, table, kv, head, k_stride, v_stride,
    F: tl.constexpr, ROTARY: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """Stores one head of a row's key, rotated, and of its value. position: [1]."""
    rows = row + tl.zeros([1], tl.int64)
    is_row = rows >= 0
    slot = tl.load(table + position // F.BLOCK).to(tl.int64) * F.BLOCK + position % F.BLOCK
    key = rotated(k, rows * k_stride + head * F.D, position, is_row, tables, F.D, F.D_PAD, ROTARY)
    value = rotated(v, rows * v_stride + head * F.D, position, is_row, tables, F.D, F.D_PAD, 0)
    store_elements(key, kv, slot, is_row, head, 0, 0, F.D, F.D_PAD, F.BLOCK, F.KIND, STORED, 1)
    store_elements(
        value, kv, slot, is_row, head, kv.values_offset, kv.values_scales_offset, F.D, F.D_PAD, F.BLOCK, F.KIND, STORED,
        1,
    )  # fmt: skip


@triton.jit
def decode_kernel(
    q, k, v, out, tables, sinks, partials, counts, items, block_tables, kv,
    q_stride, k_stride, v_stride, out_stride, table_stride, num_heads, scoring,
    F: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr, ROTARY: tl.constexpr, STORED: tl.constexpr,
    HAS_SINKS: tl.constexpr, MANY: tl.constexpr, FEW: tl.constexpr,
):  # fmt: skip
    """Computes splits as `split_kernel` does. The program that finishes last for a row and KV head merges its splits.

    HEADS: a power of two, GROUP or more.
    """
    await_previous()
    GROUP: tl.constexpr = F.GROUP
    SPLIT: tl.constexpr = F.SPLIT
    num_kv_heads = num_heads // GROUP
    num_items = tl.load(counts) * num_kv_heads
    rows = tl.arange(0, ROWS)
    group = tl.arange(0, HEADS)
    item = load_item(items, tl.program_id(0) // num_kv_heads, tl.program_id(0) < num_items)
    for index in tl.range(tl.program_id(0), num_items, tl.num_programs(0)):
        head = index % num_kv_heads
        entry, _, split, partial, row, _, context = item
        # Arrives while this item is computed.
        later = index + tl.num_programs(0)
        item = load_item(items, later // num_kv_heads, later < num_items)
        row = row.to(tl.int64)
        position = context - 1 + tl.zeros([1], tl.int32)
        last_split = (context - 1) // SPLIT
        table = block_tables + entry.to(tl.int64) * table_stride
        is_head = rows < GROUP
        offsets = row * q_stride + (head * GROUP + rows) * F.D
        queries = narrow(rotated(q, offsets, position, is_head, tables, F.D, F.D_PAD, ROTARY), F.DTYPE)
        if split == last_split:
            _write_row(k, v, row, position, tables, table, kv, head, k_stride, v_stride, F, ROTARY, STORED)
            # All threads of this program read the row.
            tl.debug_barrier()
        state = attend_split(
            queries, split, context - 1, context - 1, position + 0 * rows, context, table, head, kv, scoring, F, ROWS
        )
        places = partial.to(tl.int64) * num_heads + head * GROUP + rows
        store_partial(partials, places, state, is_head, F.D, F.D_PAD)
        # All threads have stored before this program counts as arrived.
        tl.debug_barrier()
        first_split = 0
        if F.HAS_WINDOW:
            first_split = tl.maximum(context - scoring.window, 0) // SPLIT
        arrival = partials.arrivals + row * num_kv_heads + head
        if tl.atomic_add(arrival, 1, sem="acq_rel") == last_split - first_split:
            tl.store(arrival, 0)
            merge_row(
                out + row * out_stride, partials, sinks, partial - split + first_split, 1,
                last_split + 1 - first_split, num_heads, head * GROUP + group, group < GROUP,
                F.D, F.D_PAD, F.DTYPE, MANY, FEW, HAS_SINKS,
            )  # fmt: skip


def joins_decodes(pool: KvPool) -> bool:
    """Returns True if decodes go to `decode_attention`: not those of wide heads, transformed heads or latents."""
    layout = pool.layout
    is_narrow = layout.head_size <= _MAX_HEAD_SIZE and layout.latent_size is None
    return JOINS_DECODES and is_narrow and not pool.format.is_transformed


def decode_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tables: RopeTables | None,
    pool: KvPool,
    layer: int,
    step: AttentionStep,
    plan: AttentionPlan,
    space: AttentionSpace,
    scale: float,
    soft_cap: float | None = None,
    out: torch.Tensor | None = None,
    *,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Does the work of `rope_and_write_kv` and `paged_attention` where each entry of a step is one row.

    q: [T, H * D]; k, v: [T, G * D], of one dtype, rows contiguous, possibly parts of wider ones. All entries fit in
    splits, see `fits_in_splits`. sinks: [H] f32. Returns [T, H * D] in q's dtype, in `out` if it is given; padding rows
    are not written.
    """
    assert space.max_partial_rows >= plan.max_partial_rows, "the plan was made for a larger space"
    out = rows_like(q, q.shape[1]) if out is None else out
    if q.shape[0] == 0:
        return out
    shape = plan.shape
    kv, scoring, fixed = shared_arguments(q, pool, layer, plan, scale, soft_cap)
    grid, options = split_launch(q.device, pool)
    heads = triton.next_power_of_2(shape.group)
    many = 2 if INTERPRETED.value else max(1, _MERGED_ELEMENTS // (heads * triton.next_power_of_2(shape.head_size)))
    decode_kernel[grid](
        q, k, v, out, RopeTables(q, q) if tables is None else tables, space.partials.sums if sinks is None else sinks,
        space.partials, plan.counts, plan.split_items, step.block_tables, kv,
        q.stride(0), k.stride(0), v.stride(0), out.stride(0), step.block_tables.stride(0), shape.num_heads, scoring,
        F=fixed, ROWS=SPLIT_ROWS, HEADS=heads, ROTARY=0 if tables is None else tables.dim,
        STORED=TRITON_DTYPES.get(kv.pool.dtype, tl.float32), HAS_SINKS=sinks is not None, MANY=many,
        FEW=1 if INTERPRETED.value else min(many, FEW_SPLITS), **options,
    )  # fmt: skip
    return out
