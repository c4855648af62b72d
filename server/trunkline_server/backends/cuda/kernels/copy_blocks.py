"""Copies whole blocks within the pool, with one launch for all layers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# 16 bytes for each of 128 threads, eight times.
_WORDS = 2048
_WORD_BYTES = 8


@triton.jit
def _copy_blocks_kernel(pieces, block_ids, layer_stride, piece_words, WORDS: tl.constexpr):
    """Copies a part of one piece; program ids are pair, layer, part. pieces: int64 words."""
    source = tl.load(block_ids + tl.program_id(0) * 2).to(tl.int64)
    destination = tl.load(block_ids + tl.program_id(0) * 2 + 1).to(tl.int64)
    layer = pieces + tl.program_id(1).to(tl.int64) * layer_stride
    words = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    mask = words < tl.where(tl.minimum(source, destination) >= 0, piece_words, 0)
    values = tl.load(layer + source * piece_words + words, mask)
    tl.store(layer + destination * piece_words + words, values, mask)


def copy_blocks(pieces: torch.Tensor, block_ids: torch.Tensor) -> None:
    """Copies blocks onto others.

    pieces: [layers, num_blocks, bytes] u8, bytes a multiple of 8. block_ids: [n, 2] i32, source and destination; a pair
    with -1 is skipped, so that n may be padded. No block may be both a source and a destination. Reads and writes n *
    layers * bytes.
    """
    num_layers, _, piece_bytes = pieces.shape
    assert pieces.is_contiguous() and piece_bytes % _WORD_BYTES == 0
    if block_ids.shape[0] == 0:
        return
    words = pieces.view(torch.int64)
    piece_words = piece_bytes // _WORD_BYTES
    grid = (block_ids.shape[0], num_layers, triton.cdiv(piece_words, _WORDS))
    _copy_blocks_kernel[grid](words, block_ids, words.stride(0), piece_words, WORDS=_WORDS, num_warps=4)
