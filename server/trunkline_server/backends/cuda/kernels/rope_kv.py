"""Applies the rotary embedding to queries and keys and writes K and V into the pool in its format, in one launch.

A program takes eight tokens of one head. It moves q, k and v once each way, and the tables' rows, which the heads of a
token share in L2. Sums (int4's choice of a scale) are over one head in a tile of fixed size, whatever the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.hadamard import transform, transform_run
from trunkline_server.backends.cuda.kernels.kv_elements import (
    FLOAT,
    FP8,
    INT4,
    INT8,
    KINDS,
    KvLayer,
    fp8_of,
    int4_of,
    int8_of,
)
from trunkline_server.backends.cuda.kernels.numerics import TILE_POSITIONS, TRITON_DTYPES, narrow
from trunkline_server.backends.cuda.kernels.overlap import await_previous, overlap

if TYPE_CHECKING:
    from trunkline_server.backends.cuda.kv_pool import KvPool
    from trunkline_server.models.ops import Rope

# Tokens of one program, constant; the tail is masked.
_ROWS = 8


class RopeTables(NamedTuple):
    """Tables of cos and sin, [positions, dim / 2] f32 each, times the attention factor."""

    cos: torch.Tensor
    sin: torch.Tensor

    @property
    def dim(self) -> int:
        return 2 * self.cos.shape[1]


def rope_tables(rope: Rope, num_positions: int, device: torch.device | str) -> RopeTables:
    """Makes tables on the CPU, whatever the device, as the reference does. Cost: 4 * dim bytes per position."""
    angles = torch.arange(num_positions, dtype=torch.float32)[:, None] * torch.tensor(rope.inv_freq)
    cos, sin = angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor
    return RopeTables(cos.to(device), sin.to(device))


@triton.jit
def rotated(x, row_offsets, positions, is_row, tables, D: tl.constexpr, D_PAD: tl.constexpr, ROTARY: tl.constexpr):
    """Returns the head at x + row_offsets [ROWS], rotated, [ROWS, D_PAD] f32. Loads partner elements again, from L1.

    positions: [ROWS], or [1] if rows share one.
    """
    elements = tl.arange(0, D_PAD)
    mask = is_row[:, None] & (elements < D)[None, :]
    values = tl.load(x + row_offsets[:, None] + elements[None, :], mask, other=0.0).to(tl.float32)
    if ROTARY > 0:
        half: tl.constexpr = ROTARY // 2
        is_rotated = elements < ROTARY
        partners = tl.where(elements < half, elements + half, elements - half)
        rotated_mask = is_row[:, None] & is_rotated[None, :]
        others = tl.load(x + row_offsets[:, None] + partners[None, :], rotated_mask, other=0.0).to(tl.float32)
        angles = positions[:, None] * half + (elements % half)[None, :]
        cosines = tl.load(tables.cos + angles, is_rotated[None, :], other=1.0)
        sines = tl.load(tables.sin + angles, is_rotated[None, :], other=0.0)
        signed = tl.where((elements < half)[None, :], -others, others)
        values = tl.where(is_rotated[None, :], values * cosines + signed * sines, values)
    return values


@triton.jit
def store_elements(
    x, kv, slots, is_row, head, offset, scales_offset,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, STORED: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Stores x [ROWS, D_PAD] f32 in its slots, in the pool's format. offset, scales_offset: of K or V in a piece."""
    row: tl.constexpr = D // 2 if KIND == INT4 else D
    blocks, places = slots // BLOCK, slots % BLOCK
    first = blocks * kv.piece_elements + offset + (head * BLOCK + places) * row
    row_scales = tl.zeros([ROWS], tl.float32)
    if KIND == INT4:
        levels, row_scales = int4_of(x, D, D_PAD)
        low, high = tl.split(tl.reshape(levels, [ROWS, D_PAD // 2, 2]))
        elements = tl.arange(0, D_PAD // 2)
        stored = (low | (high << 4)).to(tl.uint8)
    else:
        elements = tl.arange(0, D_PAD)
        if KIND == FP8:
            stored, row_scales = fp8_of(x)
        elif KIND == INT8:
            stored, row_scales = int8_of(x)
        else:
            stored = narrow(x, STORED)
    tl.store(kv.pool + first[:, None] + elements[None, :], stored, is_row[:, None] & (elements < row)[None, :])
    if KIND != FLOAT:
        at = blocks * kv.piece_scales + scales_offset + head * BLOCK + places
        tl.store(kv.scales + at, narrow(row_scales, tl.bfloat16), is_row)


@triton.jit
def _store_first_keys(
    x, kv, slots, is_first, head, D: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr
):
    """Stores the error of int4 keys x [ROWS, D_PAD] in another four bits, of rows of position 0 (is_first) only."""
    levels, row_scales = int4_of(x, D, D_PAD)
    left = x - (levels * 2.0 - 15.0) * row_scales[:, None]
    left = tl.where((tl.arange(0, D_PAD) < D)[None, :], left, 0.0)
    # A piece has one such key for each head, as if its block had one position.
    store_elements(
        left, kv, slots // BLOCK, is_first, head, kv.first_keys_offset, kv.first_scales_offset,
        D, D_PAD, 1, INT4, tl.uint8, ROWS,
    )  # fmt: skip


@triton.jit
def _rope_and_write_kernel(
    q, k, v, out, positions, slots, tables, factors, kv,
    q_stride, k_stride, v_stride, out_stride, num_rows, num_kv_heads, num_query_programs, transform_factor,
    D: tl.constexpr, D_PAD: tl.constexpr, ROTARY: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
    LOG_RUN: tl.constexpr, SCALED: tl.constexpr, OUT: tl.constexpr, STORED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Handles one head, program_id(1): queries if they change, then keys, then values. LOG_RUN: 0 for no transform.

    factors: a layer's part of `KeyScaling`, read if SCALED, as are the means.
    """
    await_previous()
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    is_row = rows < num_rows
    at = tl.load(positions + rows, is_row, other=0).to(tl.int64)
    head = tl.program_id(1)
    if head < num_query_programs:
        x = rotated(q, rows * q_stride + head * D, at, is_row, tables, D, D_PAD, ROTARY)
        elements = tl.arange(0, D_PAD)
        if SCALED:
            channels = head // (num_query_programs // num_kv_heads) * D + elements
            x *= tl.load(factors + num_kv_heads * D + channels, elements < D, other=0.0)[None, :]
        if LOG_RUN > 0:
            x = transform(x, ROWS, D_PAD, LOG_RUN) * transform_factor
        mask = is_row[:, None] & (elements < D)[None, :]
        tl.store(out + rows[:, None] * out_stride + head * D + elements[None, :], narrow(x, OUT), mask)
    else:
        slot = tl.load(slots + rows, is_row, other=-1).to(tl.int64)
        is_row = slot >= 0
        head -= num_query_programs
        offset, scales_offset = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
        if head < num_kv_heads:
            x = rotated(k, rows * k_stride + head * D, at, is_row, tables, D, D_PAD, ROTARY)
            if SCALED:
                elements = tl.arange(0, D_PAD)
                x *= tl.load(factors + head * D + elements, elements < D, other=0.0)[None, :]
            if LOG_RUN > 0:
                x = transform(x, ROWS, D_PAD, LOG_RUN)
            if SCALED:
                elements = tl.arange(0, D_PAD)
                shared = kv.means + head * kv.means_stride + (at // TILE_POSITIONS * D)[:, None] + elements[None, :]
                x -= tl.load(shared, is_row[:, None] & (elements < D)[None, :], other=0.0).to(tl.float32)
            is_first = is_row & (at == 0)
        else:
            head -= num_kv_heads
            is_first = is_row & (at < 0)
            offset += kv.values_offset
            scales_offset += kv.values_scales_offset
            x = rotated(v, rows * v_stride + head * D, at, is_row, tables, D, D_PAD, 0)
            if LOG_RUN > 0:
                x = transform(x, ROWS, D_PAD, LOG_RUN)
        store_elements(x, kv, slot, is_row, head, offset, scales_offset, D, D_PAD, BLOCK, KIND, STORED, ROWS)
        if KIND == INT4:  # noqa: SIM102 (one is of the compiler, the other of the program)
            if tl.max(is_first.to(tl.int32), axis=0) > 0:
                _store_first_keys(x, kv, slot, is_first, head, D, D_PAD, BLOCK, ROWS)


def rope_and_write_kv(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    positions: torch.Tensor,
    slots: torch.Tensor,
    tables: RopeTables | None,
    pool: KvPool,
    layer: int,
) -> torch.Tensor:
    """Rotates q and k, stores k and v, and returns the queries in the form that `paged_attention` needs for this pool.

    q: [T, H * D]; k, v: [T, G * D], of one dtype, rows contiguous, possibly parts of wider ones. v: None if the pool's
    values are parts of keys. positions, slots: [T] i32; slot -1 stores nothing. tables: None leaves keys and queries
    unrotated. Returns [T, H * D] in q's dtype, or q if nothing changes it. If the pool's format transforms or scales
    keys (see `KvFormat`), the queries are transformed and scaled to match.
    """
    layout = pool.layout
    assert (v is None) == (layout.latent_size is not None), "values are given, unless they are parts of keys"
    num_written = 1 if v is None else 2
    v = k if v is None else v
    head_size, (num_rows, width) = layout.head_size, q.shape
    log_run = transform_run(head_size).bit_length() - 1 if pool.format.is_transformed else 0
    scaling = pool.key_scaling
    changes_queries = tables is not None or log_run > 0 or scaling is not None
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if changes_queries else q
    if num_rows == 0:
        return out
    num_query_programs = width // head_size if changes_queries else 0
    angles = RopeTables(positions, positions) if tables is None else tables
    kv, factors = KvLayer.of(pool, layer), angles.cos if scaling is None else scaling.factors[layer]
    _rope_and_write_kernel[(triton.cdiv(num_rows, _ROWS), num_query_programs + num_written * layout.num_kv_heads)](
        q, k, v, out, positions, slots, angles, factors, kv,
        q.stride(0), k.stride(0), v.stride(0), out.stride(0), num_rows, layout.num_kv_heads, num_query_programs,
        2.0**-log_run,
        D=head_size, D_PAD=triton.next_power_of_2(head_size), ROTARY=0 if tables is None else tables.dim,
        BLOCK=layout.block_size, KIND=KINDS[pool.format.value], LOG_RUN=log_run, SCALED=scaling is not None,
        OUT=TRITON_DTYPES[out.dtype], STORED=TRITON_DTYPES.get(kv.pool.dtype, tl.float32), ROWS=_ROWS, num_warps=4,
        enable_fp_fusion=False, **overlap(q.device),
    )  # fmt: skip
    return out
