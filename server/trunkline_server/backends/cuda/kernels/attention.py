"""Attention over block tables, for chunks of any length. `attention_tile` fixes the order of sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from trunkline_server.backends.cuda.kernels.attention_plan import (
    SPLIT,
    SPLIT_ROWS,
    AttentionPlan,
    AttentionShape,
    AttentionStep,
    rows_like,
)
from trunkline_server.backends.cuda.kernels.attention_split import Partials, merge_splits, split_kernel
from trunkline_server.backends.cuda.kernels.attention_tile import Fixed, Scoring
from trunkline_server.backends.cuda.kernels.attention_whole import whole_kernel
from trunkline_server.backends.cuda.kernels.card import Card, card_of, num_programs
from trunkline_server.backends.cuda.kernels.hadamard import transform_heads, transform_run
from trunkline_server.backends.cuda.kernels.kv_elements import KINDS, KvLayer
from trunkline_server.backends.cuda.kernels.numerics import TILE_POSITIONS, TRITON_DTYPES
from trunkline_server.backends.cuda.kernels.overlap import overlap
from trunkline_server.errors import InvalidArgument

if TYPE_CHECKING:
    from trunkline_server.backends.cuda.kv_pool import KvPool

__all__ = ["AttentionPlan", "AttentionShape", "AttentionSpace", "AttentionStep", "paged_attention"]

# A tile of 64 rows takes four warps, so each warp has 16 rows whatever the tile.
_WARP_ROWS = 16
# A tile is loaded while the one before it is computed, and its blocks are looked up before that.
_STAGES = 3
# Shared memory that is needed to load tiles ahead if heads have more than 128 elements.
_WIDE_BYTES = 160 << 10
# Programs per multiprocessor that go through the splits: as many as its registers and shared memory allow.
_SPLIT_PROGRAMS = 2


class AttentionSpace:
    """Scratch memory of one device, shared by all layers and windows: partial results of rows for each split.

    max_partial_rows: limit of rows times splits in a step. Entries beyond it are computed without splits, with the same
    bits.
    """

    def __init__(self, shape: AttentionShape, max_partial_rows: int, device: torch.device | str) -> None:
        self.max_partial_rows = max_partial_rows
        rows, heads = max(max_partial_rows, 1), shape.num_heads
        self.partials = Partials(
            mixed=torch.empty(rows, heads, shape.head_size, dtype=torch.float32, device=device),
            sums=torch.empty(rows, heads, 2, dtype=torch.float32, device=device),
            # A row of a decode has at least one partial result.
            arrivals=torch.zeros(rows, shape.num_kv_heads, dtype=torch.int32, device=device),
        )

    @staticmethod
    def bytes_per_row(shape: AttentionShape) -> int:
        return 4 * (shape.num_heads * (shape.head_size + 2) + shape.num_kv_heads)


def paged_attention(
    query: torch.Tensor,
    pool: KvPool,
    layer: int,
    step: AttentionStep,
    plan: AttentionPlan,
    space: AttentionSpace,
    scale: float,
    soft_cap: float | None = None,
    out: torch.Tensor | None = None,
    *,
    decode_only: bool = False,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Implements `Ops.paged_attention` for a query [T, H * D] from `rope_and_write_kv`, with K and V stored.

    plan: updated for this step; its window is the layer's. decode_only: every entry is computed in splits, see
    `fits_in_splits`. sinks: [H] f32. Returns [T, H * D] in the query's dtype, in `out` if it is given; padding rows are
    not written.
    Launches up to three kernels, and only those that the shapes require; their grids depend only on shapes.
    """
    shape, num_rows, num_entries = plan.shape, query.shape[0], step.context_length.shape[0]
    assert space.max_partial_rows >= plan.max_partial_rows, "the plan was made for a larger space"
    out = rows_like(query, query.shape[1]) if out is None else out
    if num_rows == 0:
        return out
    card = card_of(query.device)
    kv, scoring, fixed = shared_arguments(query, pool, layer, plan, scale, soft_cap)
    table_stride = step.block_tables.stride(0)
    if plan.max_partial_rows > 0:
        grid, options = split_launch(query.device, pool)
        split_kernel[grid](
            query, space.partials, plan.counts, plan.split_items, step.block_tables, kv, query.stride(0), table_stride,
            shape.num_heads, scoring, F=fixed, ROWS=SPLIT_ROWS, **options,
        )  # fmt: skip
        merge_splits(out, space.partials, plan, sinks)
    if not decode_only:
        num_tiles = plan.max_whole_items(num_rows, num_entries)
        whole_kernel[(num_tiles * shape.num_kv_heads,)](
            query, out, space.partials.sums if sinks is None else sinks, plan.counts, plan.whole_items, step, kv,
            query.stride(0), out.stride(0), table_stride, shape.num_kv_heads, scoring, F=fixed,
            HAS_SINKS=sinks is not None, OUT=TRITON_DTYPES[out.dtype], ROWS=shape.whole_rows,
            MERGES_LATE=card.multiplies_by_wgmma,
            num_warps=shape.whole_rows // _WARP_ROWS, num_stages=stages_of(card, pool.format.value, shape.head_size),
            enable_fp_fusion=False, **overlap(query.device),
        )  # fmt: skip
    if pool.format.is_transformed:
        factor = 1.0 / transform_run(shape.head_size)
        transform_heads(out, shape.head_size, factor, step.query_begin[num_entries:])
    return out


def split_launch(device: torch.device, pool: KvPool) -> tuple[tuple[int], dict[str, int | bool]]:
    """Returns the grid and the launch options of kernels that go through items of splits."""
    num_stages = stages_of(card_of(device), pool.format.value, pool.layout.head_size)
    options = {"num_warps": SPLIT_ROWS // _WARP_ROWS, "num_stages": num_stages, "enable_fp_fusion": False}
    return (_SPLIT_PROGRAMS * num_programs(device),), options | overlap(device)


def stages_of(card: Card, format: str, head_size: int) -> int:
    """Returns how many tiles of K and V are loaded ahead; the bits do not depend on it. format: of the pool, by name.

    Raises InvalidArgument if a program has no room for one tile.
    """
    if head_size <= 128 or card.shared_bytes >= _WIDE_BYTES:
        return _STAGES
    if format == "int4":
        raise InvalidArgument(
            f"`--kv-cache-dtype` is int4 and heads have {head_size} elements, for which a GPU of compute capability "
            f"{card.name} has too little shared memory",
            hint="use `--kv-cache-dtype int8`",
        )
    return 1


def shared_arguments(
    query: torch.Tensor, pool: KvPool, layer: int, plan: AttentionPlan, scale: float, soft_cap: float | None
) -> tuple[KvLayer, Scoring, Fixed]:
    """Returns K and V, the numbers and the constants that kernels of attention take."""
    layout, shape = pool.layout, plan.shape
    assert (layout.num_kv_heads, layout.head_size) == (shape.num_kv_heads, shape.head_size), (
        "heads of pool and plan differ"
    )
    fixed = Fixed(
        GROUP=shape.group,
        D=shape.head_size,
        D_PAD=1 << (shape.head_size - 1).bit_length(),
        BLOCK=layout.block_size,
        KIND=KINDS[pool.format.value],
        DTYPE=TRITON_DTYPES[query.dtype],
        TILE=TILE_POSITIONS.value,
        SPLIT=SPLIT,
        HAS_WINDOW=plan.window is not None,
        HAS_CAP=soft_cap is not None,
        # With a cap, scores are not relative to each other, so keys have no mean to subtract.
        MOVED=pool.key_scaling is not None and soft_cap is None,
        SEES_ALL=plan.sees_all,
    )
    return KvLayer.of(pool, layer), Scoring(scale, soft_cap or 1.0, plan.window or 0), fixed
