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

# Of a tile; the bits of attention depend on it.
TILE_POSITIONS = tl.constexpr(64)
# Columns of the smallest product of tensor cores; the first of them is used.
_COLUMNS = tl.constexpr(16)
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
def first_products(
    q, begin, table, pool, scales, head, piece_elements, piece_scales, first_keys_offset, first_scales_offset,
    D: tl.constexpr, D_PAD: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Products [ROWS] of q [ROWS, D_PAD] and what is added to the key at position 0; zero of other formats than INT4.

    begin: the first position that is attended to. If it is another one, nothing is read.
    """
    products = tl.zeros([q.shape[0]], tl.float32)
    if KIND == INT4:
        column, elements = tl.arange(0, _COLUMNS), tl.arange(0, D_PAD // 2)
        is_read = column + begin == 0
        blocks = tl.load(table + column * 0, is_read, other=0).to(tl.int64)
        pointers = pool + (blocks * piece_elements + first_keys_offset + head * (D // 2))[:, None] + elements[None, :]
        mask = is_read[:, None] & (elements < D // 2)[None, :]
        keys = load_elements(pointers, mask, KIND, DTYPE, _COLUMNS, D_PAD)
        key_scales = tl.load(scales + blocks * piece_scales + first_scales_offset + head, is_read, other=0.0)
        products = _first_column(q, keys) * tl.sum(key_scales.to(tl.float32), axis=0)
    return products


@triton.jit
def _first_column(q, columns):
    """Products [ROWS] of q [ROWS, D_PAD] and the first of columns [_COLUMNS, D_PAD]."""
    product = dot(q, tl.trans(columns), tl.zeros([q.shape[0], _COLUMNS], tl.float32))
    return tl.sum(tl.where((tl.arange(0, _COLUMNS) == 0)[None, :], product, 0.0), axis=1)


@triton.jit
def _mean_products(q, means, start, D: tl.constexpr, D_PAD: tl.constexpr, TILE: tl.constexpr):
    """Products [ROWS] of q and what the keys of the tile at `start` have in common, which is not in them."""
    column, elements = tl.arange(0, _COLUMNS), tl.arange(0, D_PAD)
    pointers = means + start // TILE * D + elements[None, :] + column[:, None] * 0
    mask = (column == 0)[:, None] & (elements < D)[None, :]
    return _first_column(q, tl.load(pointers, mask, other=0.0))


@triton.jit
def _scores(
    product, key_scales, added, scale, soft_cap, SCALED: tl.constexpr, ADDS: tl.constexpr, HAS_CAP: tl.constexpr
):
    """Products of query and key as exponents of base 2. key_scales: [TILE], if SCALED; added: to products, if ADDS."""
    if HAS_CAP:
        scores = product * (key_scales * scale)[None, :] if SCALED else product * scale
        if ADDS:
            scores += added * scale
        # tanh |x| = (1 - e^-2|x|) / (1 + e^-2|x|), which nothing makes infinite.
        shrunk = tl.exp2(tl.abs(scores) * (-2.0 / soft_cap) * _LOG2_E)
        capped = (1.0 - shrunk) / (1.0 + shrunk) * (soft_cap * _LOG2_E)
        scores = tl.where(scores < 0.0, -capped, capped)
    else:
        factor = scale * _LOG2_E
        scores = product * (key_scales * factor)[None, :] if SCALED else product * factor
        if ADDS:
            scores += added * factor
    return scores


@triton.jit
def attend(
    maximum, total, mixed, q, first, means, start, positions, table, pool, scales, head, context,
    piece_elements, piece_scales, values_offset, values_scales_offset, scale, soft_cap, window,
    D: tl.constexpr, D_PAD: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr, DTYPE: tl.constexpr,
    TILE: tl.constexpr, MASKED: tl.constexpr, HAS_WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, MOVED: tl.constexpr,
):  # fmt: skip
    """One tile of positions, from `start`, for rows at `positions` [ROWS], q [ROWS, D_PAD], first: `first_products`.

    table: the entry's blocks; head: the KV head; means: its, see `KeyScaling`, if keys are MOVED. MASKED: some row does
    not see all of the tile.
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
    added = tl.where((seen == 0)[None, :], first[:, None], 0.0)
    if MOVED:
        added += _mean_products(q, means, start, D, D_PAD, TILE)[:, None]
    scores = _scores(product, key_scales, added, scale, soft_cap, KIND != FLOAT, KIND == INT4 or MOVED, HAS_CAP)
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
