"""Searches the scaled logits of a row, all at most 0, by bisecting the range of their keys.

Elements are at `values + base[row]`, `size[row]` of them; `longest` is the largest size. ROWS rows are processed at
once, so each number is a vector. A cut describes what filters keep: all elements with a key above `cut_key`, and the
first `cut_rest` elements with that key, of mass `cut_mass` each.
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
def weighed(values, base, size, start, SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Returns the scaled logits of the tile at `start`, their weights, and which of them are elements; [ROWS, TILE]."""
    places = start + tl.arange(0, TILE)
    inside = places[None, :] < size[:, None]
    x = tl.load(values + base[:, None] + places[None, :], inside, other=float("-inf"))
    return x, mass_of(x, SCALE), inside


@triton.jit
def _kept(x, weights, inside, lowest, information, entropy, farthest, TYPICAL: tl.constexpr):
    """Returns number and mass of a tile's elements whose key is at least `lowest`."""
    kept = inside & (key_of(x).to(tl.int64) >= lowest[:, None])
    weights = tl.where(kept, weights, 0)
    if TYPICAL:
        weights = tl.where(distance_of(x, information, entropy) <= farthest[:, None], weights, 0)
    return tl.sum(kept.to(tl.int64), 1), tl.sum(weights, 1)


@triton.jit
def _above(
    first_x, first_weights, first_inside, values, base, size, longest, bound, cut_key, cut_rest, cut_mass, information,
    entropy, farthest, TYPICAL: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Returns what `above` does, with the first tile from `weighed`."""
    lowest = tl.maximum(bound, cut_key + 1)
    count, mass = _kept(first_x, first_weights, first_inside, lowest, information, entropy, farthest, TYPICAL)
    count += tl.where(bound <= cut_key, cut_rest, 0)
    mass += tl.where(bound <= cut_key, cut_rest * cut_mass, 0)
    for start in range(TILE, longest, TILE):
        x, weights, inside = weighed(values, base, size, start, SCALE, ROWS, TILE)
        more, more_mass = _kept(x, weights, inside, lowest, information, entropy, farthest, TYPICAL)
        count += more
        mass += more_mass
    return count, mass


@triton.jit
def above(
    values, base, size, longest, bound, cut_key, cut_rest, cut_mass, information, entropy, farthest,
    TYPICAL: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Returns number and mass of the elements that the cut keeps and whose key is at least `bound`."""
    x, weights, inside = weighed(values, base, size, 0, SCALE, ROWS, TILE)
    return _above(
        x, weights, inside, values, base, size, longest, bound, cut_key, cut_rest, cut_mass, information, entropy,
        farthest, TYPICAL, SCALE, ROWS, TILE,
    )  # fmt: skip


@triton.jit
def search(
    values, base, size, longest, wanted, BY_COUNT: tl.constexpr, cut_key, cut_rest, cut_mass, information, entropy,
    farthest, TYPICAL: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Finds the largest key at or above which are `wanted` elements, or more mass than `wanted`.

    Returns the key, number and mass of elements above it, and the mass of one element with that key. The first tile's
    weights, which are mostly all, are computed once.
    """
    first_x, first_weights, first_inside = weighed(values, base, size, 0, SCALE, ROWS, TILE)
    key = tl.zeros((ROWS,), tl.int64) + LOWEST
    for step in range(32):
        bound = key + (tl.full((ROWS,), 1 << 31, tl.int64) >> step)
        count, mass = _above(
            first_x, first_weights, first_inside, values, base, size, longest, bound, cut_key, cut_rest, cut_mass,
            information, entropy, farthest, TYPICAL, SCALE, ROWS, TILE,
        )  # fmt: skip
        is_reached = count >= wanted if BY_COUNT else mass > wanted
        key = tl.where(is_reached, bound, key)
    count, mass = _above(
        first_x, first_weights, first_inside, values, base, size, longest, key + 1, cut_key, cut_rest, cut_mass,
        information, entropy, farthest, TYPICAL, SCALE, ROWS, TILE,
    )  # fmt: skip
    x = value_of(key.to(tl.int32))
    weight = mass_of(tl.where(x == x, x, float("-inf")), SCALE)
    return key, count, mass, weight


@triton.jit
def information_of(
    values, base, size, longest, cut_key, cut_rest, cut_mass, total,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Returns the logarithm of the kept weights' sum, and the mean information of kept tokens (entropy), in nats."""
    cut_value = value_of(cut_key.to(tl.int32)).to(tl.float64)
    has_cut = (cut_rest > 0) & (cut_mass > 0)
    mean = tl.where(has_cut, (cut_rest * cut_mass).to(tl.float64) * tl.where(has_cut, cut_value, 0.0), 0.0)
    for start in range(0, longest, TILE):
        places = start + tl.arange(0, TILE)
        x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
        weights = mass_of(x, SCALE)
        kept = (places[None, :] < size[:, None]) & (key_of(x).to(tl.int64) > cut_key[:, None]) & (weights > 0)
        mean += tl.sum(tl.where(kept, weights.to(tl.float64) * tl.where(kept, x, 0.0).to(tl.float64), 0.0), 1)
    sum_of_weights = total.to(tl.float64)
    information = tl.log(sum_of_weights / (1 << SCALE))
    return information, information - mean / sum_of_weights


@triton.jit
def distance_within(
    values, base, size, longest, wanted, cut_key, cut_rest, cut_mass, information, entropy,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Returns the smallest distance within which the kept tokens have a mass of `wanted`."""
    first_x, first_weights, first_inside = weighed(values, base, size, 0, SCALE, ROWS, TILE)
    cut_value = value_of(cut_key.to(tl.int32))
    at_cut = distance_of(tl.where(cut_value == cut_value, cut_value, 0.0)[:, None], information, entropy)
    distance = tl.zeros((ROWS,), tl.int64)
    for step in range(1, 64):
        bound = distance + (tl.full((ROWS,), 1 << 62, tl.int64) >> (step - 1))
        mass = tl.where((tl.min(at_cut, 1) < bound) & (cut_mass > 0), cut_rest * cut_mass, 0)
        _, more = _kept(first_x, first_weights, first_inside, cut_key + 1, information, entropy, bound - 1, True)
        mass += more
        for start in range(TILE, longest, TILE):
            x, weights, inside = weighed(values, base, size, start, SCALE, ROWS, TILE)
            _, more = _kept(x, weights, inside, cut_key + 1, information, entropy, bound - 1, True)
            mass += more
        distance = tl.where(mass < wanted, bound, distance)
    return distance


@triton.jit
def find(values, base, size, longest, key, index, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Returns the place of the element with `key` that has `index` elements with the same key before it."""
    found = tl.zeros((ROWS,), tl.int32)
    before = tl.zeros((ROWS,), tl.int64)
    for start in range(0, longest, TILE):
        places = start + tl.arange(0, TILE)
        x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
        has_key = (places[None, :] < size[:, None]) & (key_of(x).to(tl.int64) == key[:, None])
        rank = before[:, None] + tl.cumsum(has_key.to(tl.int64), 1)
        is_it = has_key & (rank == index[:, None] + 1)
        found += tl.sum(tl.where(is_it, places[None, :], 0), 1)
        before += tl.sum(has_key.to(tl.int64), 1)
    return found


@triton.jit
def share_of(total, part):
    """Returns the share `part` (0 to 1, f64) of a mass, rounded up, at least 1 and at most all of it."""
    return tl.minimum(tl.maximum(_ceil(total.to(tl.float64) * part), 1), total)


@triton.jit
def least_key(values, base, size, longest, least, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Returns the smallest key whose weight is at least `least`."""
    lowest = tl.full((ROWS,), 1 << 31, tl.int64)
    for start in range(0, longest, TILE):
        places = start + tl.arange(0, TILE)
        x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
        kept = (places[None, :] < size[:, None]) & (tl.exp(x.to(tl.float64)) >= least[:, None])
        lowest = tl.minimum(lowest, tl.min(tl.where(kept, key_of(x).to(tl.int64), 1 << 31), 1))
    return lowest
