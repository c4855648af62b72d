"""Attention of sequences with one new token each, in one launch with the write of its K and V and the merge of splits.

The sums, their order and their rounding are those of `rope_and_write_kv` and `paged_attention`, and so are the bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.attention import AttentionSpace, shared_arguments, split_launch
from trunkline_server.backends.cuda.kernels.attention_plan import SPLIT_ROWS, AttentionPlan, AttentionStep
from trunkline_server.backends.cuda.kernels.attention_split import FEW_SPLITS, attend_split, load_item, merge_row
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
    k, v, row, position, cos, sin, table, pool, scales, head, k_stride, v_stride, piece_elements, piece_scales,
    values_offset, values_scales_offset,
    D: tl.constexpr, D_PAD: tl.constexpr, ROTARY: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
    STORED: tl.constexpr,
):  # fmt: skip
    """Stores one head of a row's key, rotated, and of its value. position: [1]."""
    rows = row + tl.zeros([1], tl.int64)
    is_row = rows >= 0
    slot = tl.load(table + position // BLOCK).to(tl.int64) * BLOCK + position % BLOCK
    key = rotated(k, rows * k_stride + head * D, position, is_row, cos, sin, D, D_PAD, ROTARY)
    value = rotated(v, rows * v_stride + head * D, position, is_row, cos, sin, D, D_PAD, 0)
    store_elements(
        key, pool, scales, slot, is_row, head, piece_elements, piece_scales, 0, 0, D, D_PAD, BLOCK, KIND, STORED, 1
    )
    store_elements(
        value, pool, scales, slot, is_row, head, piece_elements, piece_scales, values_offset, values_scales_offset,
        D, D_PAD, BLOCK, KIND, STORED, 1,
    )  # fmt: skip


@triton.jit
def decode_kernel(
    q, k, v, out, cos, sin, sinks, partial_mixed, partial_sums, arrivals, counts, items, block_tables,
    pool, scales, means, q_stride, k_stride, v_stride, out_stride, table_stride, num_heads,
    piece_elements, piece_scales, values_offset, values_scales_offset,
    first_keys_offset, first_scales_offset, means_stride, scale, soft_cap, window,
    GROUP: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
    DTYPE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, SPLIT: tl.constexpr,
    HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, MOVED: tl.constexpr, SEES_ALL: tl.constexpr,
    HEADS: tl.constexpr, ROTARY: tl.constexpr, STORED: tl.constexpr, HAS_SINKS: tl.constexpr, MANY: tl.constexpr,
    FEW: tl.constexpr,
):  # fmt: skip
    """Computes splits as `split_kernel` does. The program that finishes last for a row and KV head merges its splits.

    arrivals: [T, G] i32, the splits of a row and KV head that are done, zero before and after. HEADS: a power of two,
    GROUP or more.
    """
    await_previous()
    num_kv_heads = num_heads // GROUP
    num_items = tl.load(counts) * num_kv_heads
    rows = tl.arange(0, ROWS)
    elements = tl.arange(0, D_PAD)
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
        offsets = row * q_stride + (head * GROUP + rows) * D
        queries = narrow(rotated(q, offsets, position, is_head, cos, sin, D, D_PAD, ROTARY), DTYPE)
        if split == last_split:
            _write_row(
                k, v, row, position, cos, sin, table, pool, scales, head, k_stride, v_stride, piece_elements,
                piece_scales, values_offset, values_scales_offset, D, D_PAD, ROTARY, BLOCK, KIND, STORED,
            )  # fmt: skip
            # All threads of this program read the row.
            tl.debug_barrier()
        maximum, total, mixed = attend_split(
            queries, split, context - 1, context - 1, position + 0 * rows, context, table, pool, scales, means, head,
            piece_elements, piece_scales, values_offset, values_scales_offset, first_keys_offset, first_scales_offset,
            means_stride, scale, soft_cap, window, D, D_PAD, BLOCK, KIND, DTYPE, ROWS, TILE, SPLIT, HAS_WINDOW, HAS_CAP,
            MOVED, SEES_ALL,
        )  # fmt: skip
        places = partial.to(tl.int64) * num_heads + head * GROUP + rows
        mask = is_head[:, None] & (elements < D)[None, :]
        tl.store(partial_mixed + places[:, None] * D + elements[None, :], mixed, mask)
        tl.store(partial_sums + places * 2, maximum, is_head)
        tl.store(partial_sums + places * 2 + 1, total, is_head)
        # All threads have stored before this program counts as arrived.
        tl.debug_barrier()
        first_split = 0
        if HAS_WINDOW:
            first_split = tl.maximum(context - window, 0) // SPLIT
        arrival = arrivals + row * num_kv_heads + head
        if tl.atomic_add(arrival, 1, sem="acq_rel") == last_split - first_split:
            tl.store(arrival, 0)
            merge_row(
                out + row * out_stride, partial_mixed, partial_sums, sinks, partial - split + first_split, 1,
                last_split + 1 - first_split, num_heads, head * GROUP + group, group < GROUP,
                D, D_PAD, DTYPE, MANY, FEW, HAS_SINKS,
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
    if out is None:
        # Zeroed on the CPU, because NumPy warns about later operations on uninitialised padding rows.
        out = (torch.empty if q.is_cuda else torch.zeros)(q.shape, dtype=q.dtype, device=q.device)
    if q.shape[0] == 0:
        return out
    shape = plan.shape
    stored, scalars, constants = shared_arguments(q, pool, layer, plan, scale, soft_cap)
    cos, sin = (q, q) if tables is None else (tables.cos, tables.sin)
    grid, options = split_launch(q.device, pool)
    heads = triton.next_power_of_2(shape.group)
    many = 2 if INTERPRETED.value else max(1, _MERGED_ELEMENTS // (heads * triton.next_power_of_2(shape.head_size)))
    decode_kernel[grid](
        q, k, v, out, cos, sin, space.sums if sinks is None else sinks, space.mixed, space.sums, space.arrivals,
        plan.counts, plan.split_items, step.block_tables, *stored,
        q.stride(0), k.stride(0), v.stride(0), out.stride(0), step.block_tables.stride(0), shape.num_heads, *scalars,
        **constants, ROWS=SPLIT_ROWS, HEADS=heads, ROTARY=0 if tables is None else tables.dim,
        STORED=TRITON_DTYPES.get(stored[0].dtype, tl.float32), HAS_SINKS=sinks is not None, MANY=many,
        FEW=1 if INTERPRETED.value else min(many, FEW_SPLITS), **options,
    )  # fmt: skip
    return out
