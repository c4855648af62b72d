"""top-k, top-p, min-p and typical-p as cuts of a row's tokens, and XTC; draw_search.py defines a cut."""

from __future__ import annotations

import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.draw_search import (
    FARTHEST,
    LOWEST,
    NO_CUT,
    above,
    distance_of,
    distance_within,
    information_of,
    key_of,
    least_key,
    mass_of,
    search,
    share_of,
    value_of,
)


@triton.jit
def cut_by_count(
    values, base, size, longest, top_k, vocab_size, total, SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr
):
    """Applies top-k. Returns the new cut and the mass that is kept."""
    none = tl.zeros((ROWS,), tl.int64)
    key, count, mass, weight = search(
        values, base, size, longest, top_k, True, none + NO_CUT, none, none, none.to(tl.float64),
        none.to(tl.float64), none + FARTHEST, False, SCALE, ROWS, TILE,
    )  # fmt: skip
    is_cut = (top_k > 0) & (top_k < vocab_size)
    rest = top_k - count
    return (
        tl.where(is_cut, key, NO_CUT),
        tl.where(is_cut, rest, 0),
        tl.where(is_cut, weight, 0),
        tl.where(is_cut, mass + rest * weight, total),
    )


@triton.jit
def cut_by_mass(
    values, base, size, longest, top_p, cut_key, cut_rest, cut_mass, total,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Applies top-p to the tokens that a cut keeps. Returns the new cut and the mass that is kept."""
    zero = (cut_key * 0).to(tl.float64)
    wanted = share_of(total, top_p) - 1
    key, _, mass, weight = search(
        values, base, size, longest, wanted, False, cut_key, cut_rest, cut_mass, zero, zero, cut_key * 0 + FARTHEST,
        False, SCALE, ROWS, TILE,
    )  # fmt: skip
    is_cut = top_p < 1.0
    rest = (wanted - mass) // tl.maximum(weight, 1) + 1
    return (
        tl.where(is_cut, key, cut_key),
        tl.where(is_cut, rest, cut_rest),
        tl.where(is_cut, weight, cut_mass),
        tl.where(is_cut, mass + rest * weight, total),
    )


@triton.jit
def cut_by_weight(
    values, base, size, longest, min_p, cut_key, cut_rest, cut_mass, total,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Applies min-p to the tokens that a cut keeps; ties at the smallest key stay. Returns the cut and kept mass."""
    zero = (cut_key * 0).to(tl.float64)
    lowest = least_key(values, base, size, longest, min_p, ROWS, TILE)
    _, mass = above(
        values, base, size, longest, lowest, cut_key, cut_rest, cut_mass, zero, zero, cut_key * 0 + FARTHEST,
        False, SCALE, ROWS, TILE,
    )  # fmt: skip
    is_cut = (min_p > 0.0) & (lowest > cut_key)
    return (
        tl.where(is_cut, lowest - 1, cut_key),
        tl.where(is_cut, 0, cut_rest),
        tl.where(is_cut, 0, cut_mass),
        tl.where(is_cut, mass, total),
    )


@triton.jit
def cut_by_information(
    values, base, size, longest, typical_p, cut_key, cut_rest, cut_mass, total,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Applies typical-p to the tokens that a cut keeps.

    Returns the two numbers that determine a token's distance (information, entropy), the largest distance that is kept,
    the mass of an element at the cut (0 if it is not kept), and the mass that is kept.
    """
    is_cut = typical_p < 1.0
    information, entropy = information_of(
        values, base, size, longest, cut_key, cut_rest, cut_mass, total, SCALE, ROWS, TILE
    )
    within = distance_within(
        values, base, size, longest, share_of(total, typical_p), cut_key, cut_rest, cut_mass, information, entropy,
        SCALE, ROWS, TILE,
    )  # fmt: skip
    farthest = tl.where(is_cut, within, FARTHEST)
    at_cut = value_of(cut_key.to(tl.int32))
    distance = distance_of(tl.where(at_cut == at_cut, at_cut, 0.0)[:, None], information, entropy)
    cut_mass = tl.where(tl.min(distance, 1) <= farthest, cut_mass, 0)
    _, mass = above(
        values, base, size, longest, cut_key * 0 + LOWEST, cut_key, cut_rest, cut_mass, information, entropy, farthest,
        True, SCALE, ROWS, TILE,
    )  # fmt: skip
    return information, entropy, farthest, cut_mass, tl.where(is_cut, mass, total)


@triton.jit
def excluded_mass(
    values, base, size, longest, threshold, cut_key, cut_rest, cut_mass, information, entropy, farthest, total, has_xtc,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Returns the mass of the kept tokens that XTC excludes: those whose share is at least `threshold`, but the last.
    It is 0 without `has_xtc`.

    They are the first ones in order of probability, so the draw begins behind their mass.
    """
    least = share_of(total, threshold)
    huge = tl.full((ROWS,), 1 << 62, tl.int64)
    at_cut = (cut_rest > 0) & (cut_mass >= least)
    mass = tl.where(at_cut, cut_rest * cut_mass, 0)
    last = tl.where(at_cut, cut_mass, huge)
    for start in range(0, longest, TILE):
        places = start + tl.arange(0, TILE)
        x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
        kept = (places[None, :] < size[:, None]) & (key_of(x).to(tl.int64) > cut_key[:, None])
        kept = kept & (distance_of(x, information, entropy) <= farthest[:, None])
        weights = mass_of(x, SCALE)
        kept = kept & (weights >= least[:, None])
        mass += tl.sum(tl.where(kept, weights, 0), 1)
        last = tl.minimum(last, tl.min(tl.where(kept, weights, 1 << 62), 1))
    return tl.where(has_xtc & (last < huge), mass - last, 0)
