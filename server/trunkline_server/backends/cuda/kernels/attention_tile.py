"""The order in which attention adds things up, which both ways of computing it share.

Positions are taken in tiles of `TILE`, tiles in splits of `SPLIT` positions, both from position 0. Within a split the
online softmax (arXiv:1805.02867, algorithm 3) begins anew; splits are merged in order. So a row's sums depend on its
position and what it sees, not on where its step or its tile begins: what is masked multiplies by 1 and adds 0.

The reference of the exponentials is the running maximum rounded up to a whole number, base 2. Every rescaling is then
by a power of two, which rounds nothing, fused or not.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.kv_elements import FLOAT, INT4, load_elements
from trunkline_server.backends.cuda.kernels.numerics import dot, narrow

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def empty(ROWS: tl.constexpr, D_PAD: tl.constexpr):
    """Nothing seen yet: (maximum, sum, mixed)."""
    return (
        tl.full([ROWS], float("-inf"), tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.zeros([ROWS, D_PAD], tl.float32),
    )


@triton.jit
def scale_of(maximum, reference):
    """2^(maximum - reference), whole numbers or -inf; `reference` is 0 where nothing was seen."""
    return tl.exp2(maximum - reference)


@triton.jit
def reference_of(maximum):
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def merge(maximum, total, mixed, split_maximum, split_total, split_mixed):
    """What was seen, and one more split. [ROWS], [ROWS], [ROWS, D_PAD], or a row alone without its dimension."""
    both = tl.maximum(maximum, split_maximum)
    reference = reference_of(both)
    before, now = scale_of(maximum, reference), scale_of(split_maximum, reference)
    total = total * before + split_total * now
    if len(mixed.shape) == 2:
        mixed = mixed * before[:, None] + split_mixed * now[:, None]
    else:
        mixed = mixed * before + split_mixed * now
    return both, total, mixed


@triton.jit
def _scores(product, key_scales, scale, soft_cap, SCALED: tl.constexpr, HAS_CAP: tl.constexpr):
    """Products of query and key as exponents of base 2. key_scales: [TILE], if SCALED."""
    if HAS_CAP:
        scores = product * (key_scales * scale)[None, :] if SCALED else product * scale
        # tanh |x| = (1 - e^-2|x|) / (1 + e^-2|x|), which nothing makes infinite.
        shrunk = tl.exp2(tl.abs(scores) * (-2.0 / soft_cap) * _LOG2_E)
        capped = (1.0 - shrunk) / (1.0 + shrunk) * (soft_cap * _LOG2_E)
        scores = tl.where(scores < 0.0, -capped, capped)
    else:
        factor = scale * _LOG2_E
        scores = product * (key_scales * factor)[None, :] if SCALED else product * factor
    return scores


@triton.jit
def attend(
    maximum, total, mixed, q, start, positions, table, pool, scales, head, context,
    piece_elements, piece_scales, values_offset, values_scales_offset, scale, soft_cap, window,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr,
    TILE: tl.constexpr, MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr,
):  # fmt: skip
    """One tile of positions, from `start`, for rows at `positions` [ROWS], q [ROWS, D_PAD].

    table: the entry's blocks; head: the KV head. MASKED: some row does not see all of the tile.
    """
    row: tl.constexpr = D // 2 if KIND == INT4 else D
    row_pad: tl.constexpr = D_PAD // 2 if KIND == INT4 else D_PAD
    seen = start + tl.arange(0, TILE)
    # A tile in one block needs one look at the table.
    if BLOCK % TILE == 0:
        block = tl.load(table + start // BLOCK).to(tl.int64)
        blocks = block + tl.zeros([TILE], tl.int64)
    elif MASKED:
        blocks = tl.load(table + seen // BLOCK, seen < context, other=0).to(tl.int64)
    else:
        blocks = tl.load(table + seen // BLOCK).to(tl.int64)
    elements = tl.arange(0, row_pad)
    place = head * BLOCK + seen % BLOCK
    pointers = pool + (blocks * piece_elements + place * row)[:, None] + elements[None, :]
    # What lies beyond the context may be anything, not-a-number among it.
    if MASKED:
        mask = (seen < context)[:, None] & (elements < row)[None, :]
    elif row_pad != row:
        mask = (elements < row)[None, :] & (seen >= 0)[:, None]
    else:
        mask = None
    keys = load_elements(pointers, mask, KIND, DTYPE, TILE, D_PAD)
    product = dot(q, tl.trans(keys), tl.zeros([q.shape[0], TILE], tl.float32))
    scale_pointers = scales + blocks * piece_scales + place
    if KIND != FLOAT:
        key_scales = tl.load(scale_pointers, seen < context, other=0.0).to(tl.float32)
    else:
        key_scales = tl.zeros([TILE], tl.float32)
    scores = _scores(product, key_scales, scale, soft_cap, KIND != FLOAT, HAS_CAP)
    if MASKED:
        is_seen = seen[None, :] <= positions[:, None]
        if HAS_WINDOW:
            is_seen = is_seen & (seen[None, :] > positions[:, None] - window)
        scores = tl.where(is_seen, scores, float("-inf"))

    both = tl.maximum(maximum, tl.ceil(tl.max(scores, axis=1)))
    reference = reference_of(both)
    weights = tl.exp2(scores - reference[:, None])
    before = scale_of(maximum, reference)
    total = total * before + tl.sum(weights, axis=1)
    if KIND != FLOAT:
        value_scales = tl.load(scale_pointers + values_scales_offset, seen < context, other=0.0).to(tl.float32)
        weights = weights * value_scales[None, :]
    values = load_elements(pointers + values_offset, mask, KIND, DTYPE, TILE, D_PAD)
    mixed = dot(narrow(weights, DTYPE), values, mixed * before[:, None])
    return both, total, mixed
