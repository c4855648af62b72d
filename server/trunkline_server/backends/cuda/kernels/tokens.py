"""Fills in token ids that the previous step sampled, which are on the device and not yet known to the host."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 256


@triton.jit(do_not_specialize=["num_rows"])
def _fill_kernel(token_ids, previous, num_rows, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = rows < num_rows
    ids = tl.load(token_ids + rows, inside, other=0)
    is_pending = inside & (ids < 0)
    sampled = tl.load(previous + (-1 - ids), is_pending, other=0)
    # Without finite logits nothing was sampled; such a row is computed anyway and its result dropped.
    tl.store(token_ids + rows, tl.maximum(sampled, 0), is_pending)


def fill_tokens(token_ids: torch.Tensor, previous: torch.Tensor) -> None:
    """Replaces each -1 - i in `token_ids` [T] with `previous[i]`, in place. Both are i32."""
    num_rows = token_ids.shape[0]
    _fill_kernel[(triton.cdiv(num_rows, _BLOCK),)](token_ids, previous, num_rows, BLOCK=_BLOCK)
