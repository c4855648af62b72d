"""top-k, top-p, min-p and typical-p as cuts of a row's tokens, and XTC; draw_search.py defines a cut."""

from __future__ import annotations

import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.draw_search import (
    FARTHEST,
    LOWEST,
    NO_CUT,
    above,
    all_typical,
    distance_of,
    distance_within,
    information_of,
    key_of,
    least_key,
    search,
    share_of,
    value_of,
    weighed,
)


@triton.jit
def _where(is_cut, new, old):
    """Returns the new cut for rows that a filter cuts."""
    return tl.where(is_cut, new[0], old[0]), tl.where(is_cut, new[1], old[1]), tl.where(is_cut, new[2], old[2])


@triton.jit
def cut_by_count(elements, top_k, vocab_size, total, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Applies top-k. Returns the new cut and the mass that is kept."""
    none = top_k * 0
    no_cut = (none + NO_CUT, none, none)
    key, count, mass, weight = search(elements, top_k, True, no_cut, all_typical(none), False, SCALE, TILE)
    is_cut = (top_k > 0) & (top_k < vocab_size)
    rest = top_k - count
    return _where(is_cut, (key, rest, weight), no_cut), tl.where(is_cut, mass + rest * weight, total)


@triton.jit
def cut_by_mass(elements, top_p, cut, total, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Applies top-p to the tokens that a cut keeps. Returns the new cut and the mass that is kept."""
    wanted = share_of(total, top_p) - 1
    key, _, mass, weight = search(elements, wanted, False, cut, all_typical(total), False, SCALE, TILE)
    is_cut = top_p < 1.0
    rest = (wanted - mass) // tl.maximum(weight, 1) + 1
    return _where(is_cut, (key, rest, weight), cut), tl.where(is_cut, mass + rest * weight, total)


@triton.jit
def cut_by_weight(elements, min_p, cut, total, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Applies min-p to the tokens that a cut keeps; ties at the smallest key stay. Returns the cut and kept mass."""
    lowest = least_key(elements, min_p, TILE)
    _, mass = above(elements, lowest, cut, all_typical(total), False, SCALE, TILE)
    is_cut = (min_p > 0.0) & (lowest > cut[0])
    none = total * 0
    return _where(is_cut, (lowest - 1, none, none), cut), tl.where(is_cut, mass, total)


@triton.jit
def cut_by_information(elements, typical_p, cut, total, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Applies typical-p to the tokens that a cut keeps.

    Returns the numbers that say which tokens are left out, the cut with the mass of an element at it (0 if it is left
    out), and the mass that is kept.
    """
    cut_key, cut_rest, cut_mass = cut
    is_cut = typical_p < 1.0
    information, entropy = information_of(elements, cut, total, SCALE, TILE)
    within = distance_within(elements, share_of(total, typical_p), cut, information, entropy, SCALE, TILE)
    farthest = tl.where(is_cut, within, FARTHEST)
    at_cut = value_of(cut_key.to(tl.int32))
    distance = distance_of(tl.where(at_cut == at_cut, at_cut, 0.0)[:, None], information, entropy)
    cut = (cut_key, cut_rest, tl.where(tl.min(distance, 1) <= farthest, cut_mass, 0))
    typical = (information, entropy, farthest)
    _, mass = above(elements, cut_key * 0 + LOWEST, cut, typical, True, SCALE, TILE)
    return typical, cut, tl.where(is_cut, mass, total)


@triton.jit
def excluded_mass(elements, threshold, cut, typical, total, has_xtc, SCALE: tl.constexpr, TILE: tl.constexpr):
    """Returns the mass of the kept tokens that XTC excludes: those whose share is at least `threshold`, but the last.
    It is 0 without `has_xtc`.

    They are the first ones in order of probability, so the draw begins behind their mass.
    """
    cut_key, cut_rest, cut_mass = cut
    information, entropy, farthest = typical
    least = share_of(total, threshold)
    huge = tl.full(total.shape, 1 << 62, tl.int64)
    at_cut = (cut_rest > 0) & (cut_mass >= least)
    mass = tl.where(at_cut, cut_rest * cut_mass, 0)
    last = tl.where(at_cut, cut_mass, huge)
    for start in range(0, elements[3], TILE):
        x, weights, inside = weighed(elements, start, SCALE, TILE)
        kept = inside & (key_of(x).to(tl.int64) > cut_key[:, None])
        kept = kept & (distance_of(x, information, entropy) <= farthest[:, None])
        kept = kept & (weights >= least[:, None])
        mass += tl.sum(tl.where(kept, weights, 0), 1)
        last = tl.minimum(last, tl.min(tl.where(kept, weights, 1 << 62), 1))
    return tl.where(has_xtc & (last < huge), mass - last, 0)
