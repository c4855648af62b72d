"""Token ids that the host does not know yet: what the step before sampled is still on the device."""

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
    # Nothing was sampled where logits were not finite: such a row is computed and its result dropped.
    tl.store(token_ids + rows, tl.maximum(sampled, 0), is_pending)


def fill_tokens(token_ids: torch.Tensor, previous: torch.Tensor) -> None:
    """Puts token `previous[i]` where `token_ids` is -1 - i, in place. Both i32; token_ids: [T]."""
    num_rows = token_ids.shape[0]
    _fill_kernel[(triton.cdiv(num_rows, _BLOCK),)](token_ids, previous, num_rows, BLOCK=_BLOCK)
