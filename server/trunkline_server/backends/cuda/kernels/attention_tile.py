"""Fixes the order of attention's sums, which both ways of computing it share.

Positions are divided into tiles of `TILE`, tiles into splits of `SPLIT` positions, both from position 0. The online
softmax (arXiv:1805.02867, algorithm 3) starts anew in each split, and splits are merged in order. A row's sums
therefore depend on its position and what it attends to, not on where its step or its tile begins: masked positions
multiply by 1 and add 0.

The reference of the exponentials is the running maximum, rounded up to a whole number, in base 2. Every rescaling is
then by a power of two and rounds nothing, fused or not.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.kv_elements import FLOAT, INT4, load_elements
from trunkline_server.backends.cuda.kernels.numerics import dot, narrow

# Columns of the smallest product of tensor cores, of which only the first is used.
_COLUMNS = tl.constexpr(16)
_LOG2_E = tl.constexpr(1.4426950408889634)


class Scoring(NamedTuple):
    """Numbers that scores depend on. soft_cap, window: read only if `Fixed` says that there is one."""

    scale: float
    soft_cap: float
    window: int


class Fixed(NamedTuple):
    """The constants for which kernels of attention are compiled.

    GROUP: query heads of a KV head, of D elements each, in tiles of D_PAD. BLOCK: positions of a block. KIND: of stored
    elements; DTYPE: of activations. TILE, SPLIT: positions. MOVED: keys have means. SEES_ALL: see `last_seen`.
    """

    GROUP: int
    D: int
    D_PAD: int
    BLOCK: int
    KIND: tl.constexpr
    DTYPE: tl.dtype
    TILE: int
    SPLIT: int
    HAS_WINDOW: bool
    HAS_CAP: bool
    MOVED: bool
    SEES_ALL: bool


@triton.jit
def empty(ROWS: tl.constexpr, D_PAD: tl.constexpr):
    """Returns the initial state, (maximum, sum, mixed)."""
    return (
        tl.full([ROWS], float("-inf"), tl.float32),
        tl.zeros([ROWS], tl.float32),
        tl.zeros([ROWS, D_PAD], tl.float32),
    )


@triton.jit
def scale_of(maximum, reference):
    """Returns 2^(maximum - reference) for whole numbers or -inf. `reference` is 0 if no position has been seen."""
    return tl.exp2(maximum - reference)


@triton.jit
def reference_of(maximum):
    return tl.where(maximum == float("-inf"), 0.0, maximum)


@triton.jit
def merge(state, split):
    """Merges one more split into a state: [ROWS], [ROWS], [ROWS, D_PAD]."""
    maximum, total, mixed = state
    split_maximum, split_total, split_mixed = split
    both = tl.maximum(maximum, split_maximum)
    reference = reference_of(both)
    before, now = scale_of(maximum, reference), scale_of(split_maximum, reference)
    total = total * before + split_total * now
    mixed = mixed * before[:, None] + split_mixed * now[:, None]
    return both, total, mixed


@triton.jit
def add_sink(state, sink):
    """Adds a position with the score `sink`, [ROWS] or a single one, and the value 0 to a state behind its splits."""
    score = sink * _LOG2_E
    whole = tl.ceil(score)
    return merge(state, (whole, tl.exp2(score - reference_of(whole)), tl.zeros_like(state[2])))


@triton.jit
def first_products(q, begin, table, head, kv, F: tl.constexpr):
    """Returns the products [ROWS] of q [ROWS, D_PAD] with the correction of the key at position 0; zero except for
    INT4.

    begin: the first attended position. If it is not 0, nothing is read.
    """
    products = tl.zeros([q.shape[0]], tl.float32)
    if F.KIND == INT4:
        column, elements = tl.arange(0, _COLUMNS), tl.arange(0, F.D_PAD // 2)
        is_read = column + begin == 0
        blocks = tl.load(table + column * 0, is_read, other=0).to(tl.int64)
        places = blocks * kv.piece_elements + kv.first_keys_offset + head * (F.D // 2)
        mask = is_read[:, None] & (elements < F.D // 2)[None, :]
        keys = load_elements(kv.pool + places[:, None] + elements[None, :], mask, F.KIND, F.DTYPE, _COLUMNS, F.D_PAD)
        scale_places = blocks * kv.piece_scales + kv.first_scales_offset + head
        key_scales = tl.load(kv.scales + scale_places, is_read, other=0.0)
        products = _first_column(q, keys) * tl.sum(key_scales.to(tl.float32), axis=0)
    return products


@triton.jit
def _first_column(q, columns):
    """Returns the products [ROWS] of q [ROWS, D_PAD] with the first of columns [_COLUMNS, D_PAD]."""
    product = dot(q, tl.trans(columns), tl.zeros([q.shape[0], _COLUMNS], tl.float32))
    return tl.sum(tl.where((tl.arange(0, _COLUMNS) == 0)[None, :], product, 0.0), axis=1)


@triton.jit
def _mean_products(q, means, start, D: tl.constexpr, D_PAD: tl.constexpr, TILE: tl.constexpr):
    """Returns the products [ROWS] of q with the mean that was subtracted from the keys of the tile at `start`."""
    column, elements = tl.arange(0, _COLUMNS), tl.arange(0, D_PAD)
    pointers = means + start // TILE * D + elements[None, :] + column[:, None] * 0
    mask = (column == 0)[:, None] & (elements < D)[None, :]
    return _first_column(q, tl.load(pointers, mask, other=0.0))


@triton.jit
def _scores(
    product, key_scales, added, scale, soft_cap, SCALED: tl.constexpr, ADDS: tl.constexpr, HAS_CAP: tl.constexpr
):
    """Turns products of query and key into base-2 exponents.

    key_scales: [TILE], if SCALED; added: added to products, if ADDS.
    """
    if HAS_CAP:
        scores = product * (key_scales * scale)[None, :] if SCALED else product * scale
        if ADDS:
            scores += added * scale
        # tanh |x| = (1 - e^-2|x|) / (1 + e^-2|x|), which never becomes infinite.
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
def last_seen(positions, context, window, SEES_ALL: tl.constexpr, HAS_WINDOW: tl.constexpr):
    """Returns the last position that rows at `positions` see: their own, or in encoders (SEES_ALL) one behind them."""
    if SEES_ALL:
        reach = window if HAS_WINDOW else context
        result = tl.minimum(positions + reach, context) - 1
    else:
        result = positions
    return result


@triton.jit
def attend(state, q, first, start, positions, table, head, context, kv, scoring, F: tl.constexpr, MASKED: tl.constexpr):
    """Adds one tile of positions, from `start`, to the state of rows at `positions` [ROWS] with q [ROWS, D_PAD].

    first: the result of `first_products`; table: the entry's blocks; head: the KV head; kv: `KvLayer`; scoring:
    `Scoring`; F: `Fixed`. MASKED: some row does not see the whole tile.
    """
    maximum, total, mixed = state
    TILE: tl.constexpr = F.TILE
    BLOCK: tl.constexpr = F.BLOCK
    KIND: tl.constexpr = F.KIND
    row: tl.constexpr = F.D // 2 if KIND == INT4 else F.D
    row_pad: tl.constexpr = F.D_PAD // 2 if KIND == INT4 else F.D_PAD
    key_positions = start + tl.arange(0, TILE)
    # A tile inside one block needs a single look-up in the table.
    if BLOCK % TILE == 0:
        block = tl.load(table + start // BLOCK).to(tl.int64)
        blocks = block + tl.zeros([TILE], tl.int64)
    elif MASKED:
        blocks = tl.load(table + key_positions // BLOCK, key_positions < context, other=0).to(tl.int64)
    else:
        blocks = tl.load(table + key_positions // BLOCK).to(tl.int64)
    elements = tl.arange(0, row_pad)
    place = head * BLOCK + key_positions % BLOCK
    pointers = kv.pool + (blocks * kv.piece_elements + place * row)[:, None] + elements[None, :]
    # Rows beyond the context are uninitialised and may hold NaN.
    if MASKED:
        mask = (key_positions < context)[:, None] & (elements < row)[None, :]
    elif row_pad != row:
        mask = (elements < row)[None, :] & (key_positions >= 0)[:, None]
    else:
        mask = None
    keys = load_elements(pointers, mask, KIND, F.DTYPE, TILE, F.D_PAD)
    product = dot(q, tl.trans(keys), tl.zeros([q.shape[0], TILE], tl.float32))
    scale_pointers = kv.scales + blocks * kv.piece_scales + place
    if KIND != FLOAT:
        key_scales = tl.load(scale_pointers, key_positions < context, other=0.0).to(tl.float32)
    else:
        key_scales = tl.zeros([TILE], tl.float32)
    added = tl.where((key_positions == 0)[None, :], first[:, None], 0.0)
    if F.MOVED:
        added += _mean_products(q, kv.means + head * kv.means_stride, start, F.D, F.D_PAD, TILE)[:, None]
    adds: tl.constexpr = KIND == INT4 or F.MOVED
    scores = _scores(product, key_scales, added, scoring.scale, scoring.soft_cap, KIND != FLOAT, adds, F.HAS_CAP)
    if MASKED:
        last = last_seen(positions, context, scoring.window, F.SEES_ALL, F.HAS_WINDOW)
        is_seen = key_positions[None, :] <= last[:, None]
        if F.HAS_WINDOW:
            is_seen = is_seen & (key_positions[None, :] > positions[:, None] - scoring.window)
        scores = tl.where(is_seen, scores, float("-inf"))

    both = tl.maximum(maximum, tl.ceil(tl.max(scores, axis=1)))
    reference = reference_of(both)
    weights = tl.exp2(scores - reference[:, None])
    before = scale_of(maximum, reference)
    total = total * before + tl.sum(weights, axis=1)
    if KIND != FLOAT:
        value_scales = tl.load(scale_pointers + kv.values_scales_offset, key_positions < context, other=0.0)
        weights = weights * value_scales.to(tl.float32)[None, :]
    values = load_elements(pointers + kv.values_offset, mask, KIND, F.DTYPE, TILE, F.D_PAD)
    mixed = dot(narrow(weights, F.DTYPE), values, mixed * before[:, None])
    return both, total, mixed
