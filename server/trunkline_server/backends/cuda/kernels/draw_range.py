"""Finds a range of a row's scaled logits that contains the draw, so that most passes look at few tokens.

Bound i is -i * WIDTH. Two rounds narrow the range: in each, every tile sums mass and number of its elements at or above
eight bounds, first over all of the likely logits, then between the two bounds that the first round found.
"""

from __future__ import annotations

import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.draw_search import mass_of, share_of

# Bounds of a round, and the distance of neighbouring ones in the second round. The first reaches 18 below the largest.
BANDS = tl.constexpr(8)
WIDTH = tl.constexpr(0.28125)
# Columns of a table of draws [R, NUM_COLUMNS] i64, with the bits of f64 from `TEMPERATURE` to `XTC_THRESHOLD`.
TEMPERATURE, TOP_P, MIN_P, TYPICAL_P, XTC_PROBABILITY, XTC_THRESHOLD = (tl.constexpr(column) for column in range(6))
TOP_K, SEED, CHOICE, POSITION = (tl.constexpr(column) for column in range(6, 10))
NUM_COLUMNS = tl.constexpr(10)
# Covers the rounding of exp.
_MARGIN = tl.constexpr(1.0 + 1e-9)


@triton.jit
def number_of(draws, column: tl.constexpr, rows, inside):
    """Returns a column of whole numbers for some rows, i64."""
    return tl.load(draws + rows * NUM_COLUMNS + column, inside, other=0)


@triton.jit
def real_of(draws, column: tl.constexpr, rows, inside):
    """Returns a column of real numbers for some rows, f64."""
    return number_of(draws, column, rows, inside).to(tl.float64, bitcast=True)


@triton.jit
def uniform_of(draws, rows, inside):
    """Returns the number below 2^24 that draws a row's token, and whether XTC applies to it."""
    position = number_of(draws, POSITION, rows, inside).to(tl.int32)
    choice = number_of(draws, CHOICE, rows, inside).to(tl.int32)
    word, xtc_word, _, _ = tl.philox(number_of(draws, SEED, rows, inside), position, choice, choice * 0, choice * 0)
    probability = real_of(draws, XTC_PROBABILITY, rows, inside)
    return (word >> 8).to(tl.int64), inside & ((xtc_word >> 8).to(tl.float64) < probability * (1 << 24))


@triton.jit
def drawn_mass(uniform, total):
    """Returns floor(total * uniform / 2^24) for a uniform number below 2^24."""
    return uniform * (total >> 24) + ((uniform * (total & 0xFFFFFF)) >> 24)


@triton.jit
def mass_of_tiles(masses, rows, inside, num_tiles, TILES: tl.constexpr):
    """Returns the mass of whole rows from that of their tiles."""
    tiles = tl.arange(0, TILES)
    known = inside[:, None] & (tiles < num_tiles)[None, :]
    return tl.sum(tl.load(masses + rows[:, None] * num_tiles + tiles[None, :], known, other=0), 1)


@triton.jit
def bound_of(index):
    """Returns a bound, exactly; no scaled logit is below bound 0 and at or above it at once."""
    return index.to(tl.float32) * -WIDTH


@triton.jit
def store_bands(
    x, known, base, slot: tl.constexpr, step: tl.constexpr, masses, counts, rows, inside, tile, num_tiles,
    SCALE: tl.constexpr,
):  # fmt: skip
    """Stores mass and number of a tile's elements [ROWS, TILE] at or above the bounds base + step, base + 2 step, ...

    slot: of the first bound. masses, counts: [R, 2 BANDS, tiles]. known: elements; inside: rows.
    """
    weights = mass_of(x, SCALE)
    for band in range(BANDS):
        is_above = known & (x >= bound_of(base + (band + 1) * step)[:, None])
        places = (rows * (2 * BANDS) + slot + band) * num_tiles + tile
        tl.store(masses + places, tl.sum(tl.where(is_above, weights, 0), 1), inside)
        tl.store(counts + places, tl.sum(is_above.to(tl.int32), 1), inside)


@triton.jit
def _slots(values, rows, inside, slot: tl.constexpr, num_tiles, TILES: tl.constexpr):
    """Returns sums over whole rows for the bounds of a round, [ROWS, BANDS]."""
    bands, tiles = tl.arange(0, BANDS), tl.arange(0, TILES)
    places = (rows[:, None] * (2 * BANDS) + slot + bands[None, :]) * num_tiles
    known = inside[:, None, None] & (tiles < num_tiles)[None, None, :]
    return tl.sum(tl.load(values + places[:, :, None] + tiles[None, None, :], known, other=0), 2)


@triton.jit
def _at(values, band):
    """Returns the value of a band in each row of values [ROWS, BANDS]; 0 for band -1."""
    return tl.sum(tl.where(tl.arange(0, BANDS)[None, :] == band[:, None], values, 0), 1)


@triton.jit
def _first_band(draws, bound, mass, count, rows, inside, total, vocab_size):
    """Returns the first band that the elements at or above its bound [ROWS, BANDS] decide, or BANDS, and whether the
    row has no filter.

    They decide if they contain a filter's cut, or, without filters, the draw. XTC may exclude tokens beyond them.
    """
    top_k, top_p = number_of(draws, TOP_K, rows, inside)[:, None], real_of(draws, TOP_P, rows, inside)[:, None]
    min_p = real_of(draws, MIN_P, rows, inside)[:, None]
    uniform, has_xtc = uniform_of(draws, rows, inside)
    all_k = (top_k == 0) | (top_k >= vocab_size)
    has_cut = ~all_k & (top_k <= count)
    has_cut = has_cut | ((min_p >= tl.exp(bound.to(tl.float64)) * _MARGIN) & (all_k | (top_p >= 1.0)))
    has_cut = has_cut | (all_k & (top_p < 1.0) & (share_of(total[:, None], top_p) <= mass))
    is_plain = all_k & (top_p >= 1.0) & (min_p <= 0.0)
    is_plain = is_plain & (real_of(draws, TYPICAL_P, rows, inside) >= 1.0)[:, None] & ~has_xtc[:, None]
    decides = tl.where(is_plain, drawn_mass(uniform, total)[:, None] < mass, has_cut)
    band = tl.min(tl.where(decides, tl.arange(0, BANDS)[None, :], BANDS), 1)
    return band, tl.max(is_plain.to(tl.int32), 1) > 0


@triton.jit
def first_range(draws, masses, counts, rows, inside, total, vocab_size, num_tiles, TILES: tl.constexpr):
    """Returns the first round's band, the number of its elements, and mass and number of those above it.

    Without filters, only the band's own elements are counted, because the draw is among them.
    """
    mass = _slots(masses, rows, inside, 0, num_tiles, TILES)
    count = _slots(counts, rows, inside, 0, num_tiles, TILES)
    bound = bound_of((tl.arange(0, BANDS) + 1) * BANDS)[None, :]
    band, is_plain = _first_band(draws, bound, mass, count, rows, inside, total, vocab_size)
    above, mass_above = _at(count, band - 1), _at(mass, band - 1)
    return band, _at(count, band) - tl.where(is_plain, above, 0), mass_above, above


@triton.jit
def range_of(draws, masses, counts, rows, inside, total, vocab_size, num_tiles, few, TILES: tl.constexpr):
    """Returns the slots of a row's lower and upper bound (-1: none), both bounds, number of elements between them, and
    the mass above the upper bound.

    The lower bound is 0 if no range decides.
    """
    first, count, mass_above, above = first_range(
        draws, masses, counts, rows, inside, total, vocab_size, num_tiles, TILES
    )
    is_narrowed = (first < BANDS) & (count > few)
    second_mass = _slots(masses, rows, inside & is_narrowed, BANDS, num_tiles, TILES)
    second_count = _slots(counts, rows, inside & is_narrowed, BANDS, num_tiles, TILES)
    index = first[:, None] * BANDS + 1 + tl.arange(0, BANDS)[None, :]
    second, is_plain = _first_band(draws, bound_of(index), second_mass, second_count, rows, inside, total, vocab_size)
    low_slot = tl.where(is_narrowed, BANDS + second, first)
    # The upper bound of a second round's first band is the first round's.
    is_inner = is_narrowed & (second > 0)
    high_slot = tl.where(is_inner, low_slot - 1, first - 1)
    low = tl.where(is_narrowed, first * BANDS + second + 1, (first + 1) * BANDS)
    high = tl.where(is_narrowed, low - 1, low - BANDS)
    above = tl.where(is_inner, _at(second_count, second - 1), above)
    mass_above = tl.where(is_inner, _at(second_mass, second - 1), mass_above)
    count = tl.where(is_narrowed, _at(second_count, second) - tl.where(is_plain, above, 0), count)
    is_found = first < BANDS
    return (
        tl.where(is_found, low_slot, -1),
        tl.where(is_found & is_plain, high_slot, -1),
        tl.where(is_found, low, 0),
        tl.where(is_found & is_plain, high, 0),
        tl.where(is_found, count, 0),
        tl.where(is_found & is_plain, mass_above, 0),
    )
