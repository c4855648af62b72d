"""Masks of tokens with penalties, in the format of `Chunk.allowed_tokens` in shard.proto."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PENALTY = np.dtype([("token_id", "<u4"), ("addend", "<f4")])
NO_PENALTIES = (np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.float32))


def num_mask_bytes(vocab_size: int) -> int:
    """Returns the number of bytes of a mask without its penalties."""
    return -(-vocab_size // 8)


def mask_problem(mask: bytes, vocab_size: int) -> str | None:
    """Returns why a mask cannot be used, or None. An empty mask is no mask."""
    expected = num_mask_bytes(vocab_size)
    num_more = len(mask) - expected
    if mask and (num_more < 0 or num_more % _PENALTY.itemsize):
        return f"a mask of {len(mask)} bytes, expected {expected} and {_PENALTY.itemsize} for each penalty"
    return None


def penalties_of(mask: bytes, vocab_size: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Returns token ids and what to add to their logits."""
    # Almost all samples end here.
    if len(mask) <= num_mask_bytes(vocab_size):
        return NO_PENALTIES
    pairs = np.frombuffer(mask[num_mask_bytes(vocab_size) :], dtype=_PENALTY)
    pairs = pairs[pairs["token_id"] < vocab_size]
    return pairs["token_id"].astype(np.int32), pairs["addend"].astype(np.float32)
