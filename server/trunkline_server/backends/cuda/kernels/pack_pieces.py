"""Copies pieces of blocks between the pool, where they are scattered, and contiguous memory."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# 16 bytes for each of 128 threads, eight times.
_WORDS = 2048
_WORD_BYTES = 8


@triton.jit
def _pack_kernel(pieces, packed, block_ids, layer_stride, piece_words, IS_PACKING: tl.constexpr, WORDS: tl.constexpr):
    """Moves a part of a piece of the i-th block; program ids are i, layer, part. pieces, packed: int64 words."""
    number, layer = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    block = tl.load(block_ids + number).to(tl.int64)
    words = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    mask = words < piece_words
    in_pool = pieces + layer * layer_stride + block * piece_words + words
    in_packed = packed + (number * tl.num_programs(1) + layer) * piece_words + words
    if IS_PACKING:
        tl.store(in_packed, tl.load(in_pool, mask), mask)
    else:
        tl.store(in_pool, tl.load(in_packed, mask), mask)


def pack_pieces(pieces: torch.Tensor, block_ids: torch.Tensor, packed: torch.Tensor) -> None:
    """Copies blocks out of the pool.

    pieces: [layers, num_blocks, bytes] u8, all or some layers of the pool. block_ids: [n] i32 on the device, each below
    num_blocks. packed: [n, layers, bytes] u8, contiguous; bytes is a multiple of 8.
    """
    _launch(pieces, block_ids, packed, is_packing=True)


def unpack_pieces(packed: torch.Tensor, block_ids: torch.Tensor, pieces: torch.Tensor) -> None:
    """Copies blocks into the pool; parameters as for `pack_pieces`. Block ids must be distinct."""
    _launch(pieces, block_ids, packed, is_packing=False)


def _launch(pieces: torch.Tensor, block_ids: torch.Tensor, packed: torch.Tensor, *, is_packing: bool) -> None:
    num_layers, _, piece_bytes = pieces.shape
    num_blocks = block_ids.shape[0]
    assert packed.shape == (num_blocks, num_layers, piece_bytes) and packed.is_contiguous()
    assert pieces[0].is_contiguous() and piece_bytes % _WORD_BYTES == 0
    words = pieces.view(torch.int64)
    piece_words = piece_bytes // _WORD_BYTES
    grid = (num_blocks, num_layers, triton.cdiv(piece_words, _WORDS))
    _pack_kernel[grid](
        words, packed.view(torch.int64), block_ids, words.stride(0), piece_words, IS_PACKING=is_packing,
        WORDS=_WORDS, num_warps=4,
    )  # fmt: skip
