"""Searches the scaled logits of a row, all at most 0, by bisecting the range of their keys.

Several rows are processed at once, so each number is a vector [ROWS]. Kernels group them:

    elements  (values, base, size, longest)      a row's are at `values + base`, `size` of them; the largest size
    cut       (key, rest, mass)                  filters keep all elements with a key above `key`, and the first `rest`
                                                 elements with that key, of mass `mass` each
    typical   (information, entropy, farthest)   tokens whose distance (see `distance_of`) is larger are left out
"""

from __future__ import annotations

import triton
import triton.language as tl

# Below all keys, so a cut there keeps everything.
LOWEST = tl.constexpr(-(1 << 31))
NO_CUT = tl.constexpr(-(1 << 32))
# No distance is larger.
FARTHEST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def key_of(x):
    """Returns an i32 whose order is that of f32; both zeros have the same key."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def value_of(key):
    """Returns the f32 of a key."""
    bits = key ^ ((key >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def mass_of(x, SCALE: tl.constexpr):
    """Returns the weight of a scaled logit (at most 0) as a multiple of 2^-SCALE."""
    return (tl.exp(x.to(tl.float64)) * (1 << SCALE) + 0.5).to(tl.int64)


@triton.jit
def _ceil(x):
    """Rounds an f64 mass up to i64."""
    below = x.to(tl.int64)
    return tl.where(below.to(tl.float64) < x, below + 1, below)


@triton.jit
def distance_of(x, information, entropy):
    """Returns the distance of a token's information from the mean, as an i64 with the order of f64."""
    return tl.abs(information[:, None] - x.to(tl.float64) - entropy[:, None]).to(tl.int64, bitcast=True)


@triton.jit
def all_typical(rows):
    """Returns numbers with which no token is left out. rows: any i64 vector."""
    zero = (rows * 0).to(tl.float64)
    return zero, zero, rows * 0 + FARTHEST


@triton.jit
def loaded(elements, start, TILE: tl.constexpr):
    """Returns the scaled logits of the tile at `start`, and which of them are elements; [ROWS, TILE]."""
    values, base, size, _ = elements
    places = start + tl.arange(0, TILE)
    inside = places[None, :] < size[:, None]
    return tl.load(values + base[:, None] + places[None, :], inside, other=float("-inf")), inside


@triton.jit
def weighed(elements, start, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Returns the scaled logits of the tile at `start`, their weights, and which of them are elements; [ROWS, TILE]."""
    x, inside = loaded(elements, start, TILE)
    return x, mass_of(x, SCALE), inside


@triton.jit
def _kept(tile, lowest, typical, TYPICAL: tl.constexpr):
    """Returns number and mass of the elements of a tile (see `weighed`) whose key is at least `lowest`."""
    x, weights, inside = tile
    kept = inside & (key_of(x).to(tl.int64) >= lowest[:, None])
    weights = tl.where(kept, weights, 0)
    if TYPICAL:
        information, entropy, farthest = typical
        weights = tl.where(distance_of(x, information, entropy) <= farthest[:, None], weights, 0)
    return tl.sum(kept.to(tl.int64), 1), tl.sum(weights, 1)


@triton.jit
def _above(first, elements, bound, cut, typical, TYPICAL: tl.constexpr, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Returns what `above` does, with the first tile from `weighed`."""
    cut_key, cut_rest, cut_mass = cut
    lowest = tl.maximum(bound, cut_key + 1)
    count, mass = _kept(first, lowest, typical, TYPICAL)
    count += tl.where(bound <= cut_key, cut_rest, 0)
    mass += tl.where(bound <= cut_key, cut_rest * cut_mass, 0)
    for start in range(TILE, elements[3], TILE):
        more, more_mass = _kept(weighed(elements, start, SCALE, TILE), lowest, typical, TYPICAL)
        count += more
        mass += more_mass
    return count, mass


@triton.jit
def above(elements, bound, cut, typical, TYPICAL: tl.constexpr, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Returns number and mass of the elements that the cut keeps and whose key is at least `bound`."""
    return _above(weighed(elements, 0, SCALE, TILE), elements, bound, cut, typical, TYPICAL, SCALE, TILE)


@triton.jit
def search(
    elements, wanted, BY_COUNT: tl.constexpr, cut, typical, TYPICAL: tl.constexpr, SCALE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Finds the largest key at or above which are `wanted` elements, or more mass than `wanted`.

    Returns the key, number and mass of elements above it, and the mass of one element with that key. The first tile's
    weights, which are mostly all, are computed once.
    """
    first = weighed(elements, 0, SCALE, TILE)
    key = cut[0] * 0 + LOWEST
    for step in range(32):
        bound = key + (tl.full(key.shape, 1 << 31, tl.int64) >> step)
        count, mass = _above(first, elements, bound, cut, typical, TYPICAL, SCALE, TILE)
        is_reached = count >= wanted if BY_COUNT else mass > wanted
        key = tl.where(is_reached, bound, key)
    count, mass = _above(first, elements, key + 1, cut, typical, TYPICAL, SCALE, TILE)
    x = value_of(key.to(tl.int32))
    weight = mass_of(tl.where(x == x, x, float("-inf")), SCALE)
    return key, count, mass, weight


@triton.jit
def information_of(elements, cut, total, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Returns the logarithm of the kept weights' sum, and the mean information of kept tokens (entropy), in nats."""
    cut_key, cut_rest, cut_mass = cut
    cut_value = value_of(cut_key.to(tl.int32)).to(tl.float64)
    has_cut = (cut_rest > 0) & (cut_mass > 0)
    mean = tl.where(has_cut, (cut_rest * cut_mass).to(tl.float64) * tl.where(has_cut, cut_value, 0.0), 0.0)
    for start in range(0, elements[3], TILE):
        x, weights, inside = weighed(elements, start, SCALE, TILE)
        kept = inside & (key_of(x).to(tl.int64) > cut_key[:, None]) & (weights > 0)
        mean += tl.sum(tl.where(kept, weights.to(tl.float64) * tl.where(kept, x, 0.0).to(tl.float64), 0.0), 1)
    sum_of_weights = total.to(tl.float64)
    information = tl.log(sum_of_weights / (1 << SCALE))
    return information, information - mean / sum_of_weights


@triton.jit
def distance_within(elements, wanted, cut, information, entropy, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Returns the smallest distance within which the kept tokens have a mass of `wanted`."""
    cut_key, cut_rest, cut_mass = cut
    first = weighed(elements, 0, SCALE, TILE)
    cut_value = value_of(cut_key.to(tl.int32))
    at_cut = distance_of(tl.where(cut_value == cut_value, cut_value, 0.0)[:, None], information, entropy)
    distance = cut_key * 0
    for step in range(1, 64):
        bound = distance + (tl.full(distance.shape, 1 << 62, tl.int64) >> (step - 1))
        mass = tl.where((tl.min(at_cut, 1) < bound) & (cut_mass > 0), cut_rest * cut_mass, 0)
        typical = (information, entropy, bound - 1)
        _, more = _kept(first, cut_key + 1, typical, True)
        mass += more
        for start in range(TILE, elements[3], TILE):
            _, more = _kept(weighed(elements, start, SCALE, TILE), cut_key + 1, typical, True)
            mass += more
        distance = tl.where(mass < wanted, bound, distance)
    return distance


@triton.jit
def find(elements, key, index, TILE: tl.constexpr):
    """Returns the place of the element with `key` that has `index` elements with the same key before it."""
    before = key * 0
    found = before.to(tl.int32)
    for start in range(0, elements[3], TILE):
        x, inside = loaded(elements, start, TILE)
        has_key = inside & (key_of(x).to(tl.int64) == key[:, None])
        rank = before[:, None] + tl.cumsum(has_key.to(tl.int64), 1)
        is_it = has_key & (rank == index[:, None] + 1)
        found += tl.sum(tl.where(is_it, (start + tl.arange(0, TILE))[None, :], 0), 1)
        before += tl.sum(has_key.to(tl.int64), 1)
    return found


@triton.jit
def share_of(total, part):
    """Returns the share `part` (0 to 1, f64) of a mass, rounded up, at least 1 and at most all of it."""
    return tl.minimum(tl.maximum(_ceil(total.to(tl.float64) * part), 1), total)


@triton.jit
def least_key(elements, least, TILE: tl.constexpr):
    """Returns the smallest key whose weight is at least `least`."""
    lowest = tl.full(least.shape, 1 << 31, tl.int64)
    for start in range(0, elements[3], TILE):
        x, inside = loaded(elements, start, TILE)
        kept = inside & (tl.exp(x.to(tl.float64)) >= least[:, None])
        lowest = tl.minimum(lowest, tl.min(tl.where(kept, key_of(x).to(tl.int64), 1 << 31), 1))
    return lowest
