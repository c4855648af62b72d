"""Copies K and V of one sequence out of their blocks into contiguous positions, for attention without block tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from trunkline_server.backends.cuda.kv_pool import KvPool


@triton.jit
def _gather_kernel(
    elements, table, keys, values, piece_elements, values_offset, num_positions,
    BLOCK: tl.constexpr, D: tl.constexpr, D_PAD: tl.constexpr,
):  # fmt: skip
    """Copies one block of one head."""
    head, num_heads = tl.program_id(1), tl.num_programs(1)
    source = tl.load(table + tl.program_id(0)).to(tl.int64) * piece_elements + head * BLOCK * D
    places = tl.arange(0, BLOCK)
    columns = tl.arange(0, D_PAD)
    positions = tl.program_id(0) * BLOCK + places
    mask = (positions < num_positions)[:, None] & (columns < D)[None, :]
    stored = elements + source + places[:, None] * D + columns[None, :]
    target = (positions[:, None].to(tl.int64) * num_heads + head) * D + columns[None, :]
    tl.store(keys + target, tl.load(stored, mask), mask)
    tl.store(values + target, tl.load(stored + values_offset, mask), mask)


def gather_kv(pool: KvPool, layer: int, table: torch.Tensor, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns K and V [num_positions, G, D] of a layer, in the pool's dtype, which must have no scales.

    table: i32, the blocks of these positions in order. Reads and writes each element once.
    """
    layout = pool.layout
    assert not pool.format.has_scales, "cannot gather elements with scales"
    num_blocks = triton.cdiv(num_positions, layout.block_size)
    shape = (num_positions, layout.num_kv_heads, layout.head_size)
    elements = pool.elements(layer)
    keys, values = (torch.empty(shape, dtype=elements.dtype, device=elements.device) for _ in range(2))
    _gather_kernel[(num_blocks, layout.num_kv_heads)](
        elements, table, keys, values, layout.piece_elements, layout.values_offset, num_positions,
        BLOCK=layout.block_size, D=layout.head_size, D_PAD=triton.next_power_of_2(layout.head_size), num_warps=8,
    )  # fmt: skip
    return keys, values
