"""Choosing a token of each row, as sampling/sampler.py does, without sorting the vocabulary.

What is drawn depends on probabilities in descending order. A logit's order is that of an integer, and its weight a
fixed-point number, whose sums are exact in any order: so the token is found by halving the range of integers and summing
the weights above. Weights are exp in f64, rounded to 2^-SCALE of the likeliest: a bound that is met within that is the
only case in which the choice may differ from the reference's, which rounds its own f64 sums there.

Most of the weight is in few tokens: those within `NEAR` of the likeliest are listed, in order of their ids, and all but
the first pass run over the list alone. Where the list cannot decide (it is full, or what is drawn lies beyond), the same
code runs over the whole row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

# Scaled logits this far below the largest are listed.
NEAR = tl.constexpr(10.0)
# A weight above exp(-NEAR), so that whoever has it is listed.
LEAST_LISTED = tl.constexpr(4.55e-5)
# Tokens that a row's list holds, at most.
MAX_LISTED = 8192
# What is said instead of a token: a logit is NaN; an infinity leads.
NOT_A_NUMBER = -1
NOT_FINITE = -2
# Elements of a tile; of all rows of a program together.
_TILE = 2048

_LOWEST = tl.constexpr(-(1 << 31))


@dataclass(frozen=True, slots=True)
class Draws:
    """How rows draw, [R] each. temperature: f32, 0 takes the largest; top_k: i32, 0 keeps all; top_p, min_p, typical_p:
    f64; seeds: i64, the bits of a u64; choices, positions: i32, the bits of a u32.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    typical_p: torch.Tensor
    seeds: torch.Tensor
    choices: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class Peaks:
    """The largest logit of each tile, [R, tiles] each. largest: f32, NaN if any is; tokens: i32, the lowest id."""

    largest: torch.Tensor
    tokens: torch.Tensor


@triton.jit
def _key(x):
    """i32 in the order of f32; zeros are equal."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(key):
    """The f32 of a key."""
    bits = key ^ ((key >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _mass(x, SCALE: tl.constexpr):
    """The weight of a scaled logit (at most 0), as a multiple of 2^-SCALE."""
    return (tl.exp(x.to(tl.float64)) * (1 << SCALE) + 0.5).to(tl.int64)


@triton.jit
def _ceil(x):
    """f64 of a mass, as i64."""
    below = x.to(tl.int64)
    return tl.where(below.to(tl.float64) < x, below + 1, below)


@triton.jit
def _distance(x, information, entropy):
    """How far a token's information is from the mean, as an i64 in the order of f64."""
    return tl.abs(information[:, None] - x.to(tl.float64) - entropy[:, None]).to(tl.int64, bitcast=True)


@triton.jit(do_not_specialize=["num_rows"])
def _peaks_kernel(logits, largest, tokens, num_rows, vocab_size, stride, ROWS: tl.constexpr, TILE: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tile, num_tiles = tl.program_id(1), tl.num_programs(1)
    columns = tile * TILE + tl.arange(0, TILE)
    inside = (rows < num_rows)[:, None] & (columns < vocab_size)[None, :]
    x = tl.load(logits + rows[:, None] * stride + columns[None, :], inside, other=float("-inf"))
    has_nan = tl.max((x != x).to(tl.int32), 1) > 0
    peak = tl.max(tl.where(x != x, float("-inf"), x), 1)
    first = tl.min(tl.where(x == peak[:, None], columns[None, :], vocab_size), 1)
    places = rows * num_tiles + tile
    tl.store(largest + places, tl.where(has_nan, float("nan"), peak), rows < num_rows)
    tl.store(tokens + places, first, rows < num_rows)


@triton.jit
def _peak(largest, tokens, rows, inside, num_tiles, TILES: tl.constexpr):
    """Of whole rows: largest logit, whether one is NaN, lowest id of the largest."""
    tiles = tl.arange(0, TILES)
    places = rows[:, None] * num_tiles + tiles[None, :]
    known = inside[:, None] & (tiles < num_tiles)[None, :]
    values = tl.load(largest + places, known, other=float("-inf"))
    has_nan = tl.max((values != values).to(tl.int32), 1) > 0
    peak = tl.max(tl.where(values != values, float("-inf"), values), 1)
    ids = tl.load(tokens + places, known & (values == peak[:, None]), other=0x7FFFFFFF)
    return peak, has_nan, tl.min(ids, 1)


@triton.jit(do_not_specialize=["num_rows"])
def _weigh_kernel(
    logits, largest, tokens, temperature, scaled, masses, num_rows, vocab_size, num_tiles, stride, scaled_stride,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    inside = rows < num_rows
    peak, _, _ = _peak(largest, tokens, rows, inside, num_tiles, TILES)
    heat = tl.load(temperature + rows, inside, other=1.0)
    heat = tl.where(heat == 0.0, 1.0, heat)
    columns = tile * TILE + tl.arange(0, TILE)
    known = inside[:, None] & (columns < vocab_size)[None, :]
    x = tl.load(logits + rows[:, None] * stride + columns[None, :], known, other=float("-inf"))
    x = tl.div_rn(x - peak[:, None], heat[:, None] + tl.zeros_like(x))
    x = tl.where(x == x, x, float("-inf"))
    tl.store(scaled + rows[:, None] * scaled_stride + columns[None, :], x, known)
    tl.store(masses + rows * num_tiles + tile, tl.sum(tl.where(known, _mass(x, SCALE), 0), 1), inside)


@triton.jit(do_not_specialize=["num_rows"])
def _list_kernel(
    values, ids, counts, num_rows, vocab_size, stride, capacity, ROWS: tl.constexpr, TILE: tl.constexpr
):
    """Copies what is not below -NEAR behind the row, at vocab_size, and its ids; counts may pass capacity."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    count = tl.zeros((ROWS,), tl.int32)
    for start in range(0, vocab_size, TILE):
        columns = start + tl.arange(0, TILE)
        known = inside[:, None] & (columns < vocab_size)[None, :]
        x = tl.load(values + rows[:, None] * stride + columns[None, :], known, other=float("-inf"))
        is_near = known & (x >= -NEAR)
        place = count[:, None] + tl.cumsum(is_near.to(tl.int32), 1) - 1
        fits = is_near & (place < capacity)
        tl.store(values + rows[:, None] * stride + vocab_size + place, x, fits)
        tl.store(ids + rows[:, None] * capacity + place, columns[None, :] + tl.zeros_like(place), fits)
        count += tl.sum(is_near.to(tl.int32), 1)
    tl.store(counts + rows, count, inside)


@triton.jit
def _above(
    values, base, size, longest, bound, cut_key, cut_rest, cut_mass, information, entropy, farthest,
    TYPICAL: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Number and mass of elements whose key is `bound` or above, of those before the cut.

    The cut keeps keys above `cut_key` and the first `cut_rest` that have it, of `cut_mass` each.
    """
    count = tl.where(bound <= cut_key, cut_rest, 0)
    mass = tl.where(bound <= cut_key, cut_rest * cut_mass, 0)
    lowest = tl.maximum(bound, cut_key + 1)
    for start in range(0, longest, TILE):
        places = start + tl.arange(0, TILE)
        x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
        kept = (places[None, :] < size[:, None]) & (_key(x).to(tl.int64) >= lowest[:, None])
        weights = tl.where(kept, _mass(x, SCALE), 0)
        if TYPICAL:
            weights = tl.where(_distance(x, information, entropy) <= farthest[:, None], weights, 0)
        count += tl.sum(kept.to(tl.int64), 1)
        mass += tl.sum(weights, 1)
    return count, mass


@triton.jit
def _search(
    values, base, size, longest, wanted, BY_COUNT: tl.constexpr, cut_key, cut_rest, cut_mass, information, entropy,
    farthest, TYPICAL: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The largest key at or above which are `wanted` elements, or more mass than `wanted`; and what is above it.

    Returns the key, number and mass above it, and the mass of one element that has it.
    """
    key = tl.zeros((ROWS,), tl.int64) + _LOWEST
    for step in range(32):
        bound = key + (tl.full((ROWS,), 1 << 31, tl.int64) >> step)
        count, mass = _above(
            values, base, size, longest, bound, cut_key, cut_rest, cut_mass, information, entropy, farthest,
            TYPICAL, SCALE, ROWS, TILE,
        )  # fmt: skip
        if BY_COUNT:
            key = tl.where(count >= wanted, bound, key)
        else:
            key = tl.where(mass > wanted, bound, key)
    count, mass = _above(
        values, base, size, longest, key + 1, cut_key, cut_rest, cut_mass, information, entropy, farthest,
        TYPICAL, SCALE, ROWS, TILE,
    )  # fmt: skip
    x = _value(key.to(tl.int32))
    weight = _mass(tl.where(x == x, x, float("-inf")), SCALE)
    return key, count, mass, weight


@triton.jit
def _entropy(
    values, base, size, longest, cut_key, cut_rest, cut_mass, total,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """log of the kept weights' sum, and the mean of what a token's logarithm is short of it: nats."""
    cut_value = _value(cut_key.to(tl.int32)).to(tl.float64)
    has_cut = (cut_rest > 0) & (cut_mass > 0)
    mean = tl.where(has_cut, (cut_rest * cut_mass).to(tl.float64) * tl.where(has_cut, cut_value, 0.0), 0.0)
    for start in range(0, longest, TILE):
        places = start + tl.arange(0, TILE)
        x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
        weights = _mass(x, SCALE)
        kept = (places[None, :] < size[:, None]) & (_key(x).to(tl.int64) > cut_key[:, None]) & (weights > 0)
        mean += tl.sum(tl.where(kept, weights.to(tl.float64) * tl.where(kept, x, 0.0).to(tl.float64), 0.0), 1)
    sum_of_weights = total.to(tl.float64)
    information = tl.log(sum_of_weights / (1 << SCALE))
    return information, information - mean / sum_of_weights


@triton.jit
def _farthest(
    values, base, size, longest, wanted, cut_key, cut_rest, cut_mass, information, entropy,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The smallest distance within which the kept tokens have a mass of `wanted`."""
    distance = tl.zeros((ROWS,), tl.int64)
    for step in range(1, 64):
        bound = distance + (tl.full((ROWS,), 1 << 62, tl.int64) >> (step - 1))
        cut_value = _value(cut_key.to(tl.int32))
        at_cut = _distance(tl.where(cut_value == cut_value, cut_value, 0.0)[:, None], information, entropy)
        mass = tl.where((tl.min(at_cut, 1) < bound) & (cut_mass > 0), cut_rest * cut_mass, 0)
        for start in range(0, longest, TILE):
            places = start + tl.arange(0, TILE)
            x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
            kept = (places[None, :] < size[:, None]) & (_key(x).to(tl.int64) > cut_key[:, None])
            kept = kept & (_distance(x, information, entropy) < bound[:, None])
            mass += tl.sum(tl.where(kept, _mass(x, SCALE), 0), 1)
        distance = tl.where(mass < wanted, bound, distance)
    return distance


@triton.jit
def _find(values, base, size, longest, key, index, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Where the element is that has `key` and `index` others with it before it."""
    found = tl.zeros((ROWS,), tl.int32)
    before = tl.zeros((ROWS,), tl.int64)
    for start in range(0, longest, TILE):
        places = start + tl.arange(0, TILE)
        x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
        has_key = (places[None, :] < size[:, None]) & (_key(x).to(tl.int64) == key[:, None])
        rank = before[:, None] + tl.cumsum(has_key.to(tl.int64), 1)
        is_it = has_key & (rank == index[:, None] + 1)
        found += tl.sum(tl.where(is_it, places[None, :], 0), 1)
        before += tl.sum(has_key.to(tl.int64), 1)
    return found


@triton.jit
def _part(total, part):
    """Of a mass, `part` (0 to 1, f64), rounded up; at least the smallest, at most all."""
    return tl.minimum(tl.maximum(_ceil(total.to(tl.float64) * part), 1), total)


@triton.jit
def _least_weight_cut(values, base, size, longest, least, ROWS: tl.constexpr, TILE: tl.constexpr):
    """The smallest key whose weight is not below `least`."""
    lowest = tl.full((ROWS,), 1 << 31, tl.int64)
    for start in range(0, longest, TILE):
        places = start + tl.arange(0, TILE)
        x = tl.load(values + base[:, None] + places[None, :], places[None, :] < size[:, None], other=float("-inf"))
        kept = (places[None, :] < size[:, None]) & (tl.exp(x.to(tl.float64)) >= least[:, None])
        lowest = tl.minimum(lowest, tl.min(tl.where(kept, _key(x).to(tl.int64), 1 << 31), 1))
    return lowest


@triton.jit(do_not_specialize=["num_rows"])
def _choose_kernel(
    values, ids, counts, masses, largest, tokens, temperature, top_ks, top_ps, min_ps, typical_ps, seeds, choices,
    positions, out, num_rows, vocab_size, num_tiles, stride, capacity,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, TYPICAL: tl.constexpr, SCALE: tl.constexpr,
    ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    peak, has_nan, first = _peak(largest, tokens, rows, inside, num_tiles, TILES)
    heat = tl.load(temperature + rows, inside, other=0.0)
    tiles = tl.arange(0, TILES)
    known = inside[:, None] & (tiles < num_tiles)[None, :]
    total = tl.sum(tl.load(masses + rows[:, None] * num_tiles + tiles[None, :], known, other=0), 1)
    top_k = tl.load(top_ks + rows, inside, other=0).to(tl.int64)
    top_p = tl.load(top_ps + rows, inside, other=1.0)
    min_p = tl.load(min_ps + rows, inside, other=0.0)
    typical_p = tl.load(typical_ps + rows, inside, other=1.0)
    seed = tl.load(seeds + rows, inside, other=0)
    position = tl.load(positions + rows, inside, other=0)
    choice = tl.load(choices + rows, inside, other=0)
    word, _, _, _ = tl.philox(seed, position, choice, choice * 0, choice * 0)
    uniform = (word >> 8).to(tl.int64)

    # Nothing is cut yet, nothing is atypical.
    none = tl.zeros((ROWS,), tl.int64)
    cut_key, cut_rest, cut_mass = none + 2 * _LOWEST, none, none
    information = none.to(tl.float64)
    entropy = information
    farthest = none + 0x7FFFFFFFFFFFFFFF

    # Whether the list decides: a cut is in it, or without any cut what is drawn.
    count = tl.load(counts + rows, inside, other=0)
    fits = count <= capacity
    listed = tl.where(fits, count, 0)
    offset = rows * stride + vocab_size
    _, listed_mass = _above(
        values, offset, listed, tl.max(listed, 0), none + _LOWEST, cut_key, cut_rest, cut_mass, information, entropy,
        farthest, False, SCALE, ROWS, TILE,
    )  # fmt: skip
    all_k = (top_k == 0) | (top_k >= vocab_size)
    has_cut = (~all_k & (top_k <= listed)) | ((min_p >= LEAST_LISTED) & (all_k | (top_p >= 1.0)))
    has_cut = has_cut | (all_k & (top_p < 1.0) & (_part(total, top_p) <= listed_mass))
    is_plain = all_k & (top_p >= 1.0) & (min_p <= 0.0) & (typical_p >= 1.0)
    drawn = uniform * (total >> 24) + ((uniform * (total & 0xFFFFFF)) >> 24)
    is_listed = fits & (has_cut | (is_plain & (drawn < listed_mass)))
    is_drawn = inside & (heat != 0.0) & (total > 0)
    base = tl.where(is_listed, offset, rows * stride)
    size = tl.where(is_drawn, tl.where(is_listed, listed, vocab_size), 0)
    longest = tl.max(size, 0)

    if TOP_K:
        key, above, mass, weight = _search(
            values, base, size, longest, top_k, True, cut_key, cut_rest, cut_mass, information, entropy, farthest,
            False, SCALE, ROWS, TILE,
        )  # fmt: skip
        cut_key = tl.where(all_k, cut_key, key)
        cut_rest = tl.where(all_k, cut_rest, top_k - above)
        cut_mass = tl.where(all_k, cut_mass, weight)
        total = tl.where(all_k, total, mass + (top_k - above) * weight)
    kept_mass = total
    if TOP_P:
        wanted = _part(total, top_p) - 1
        key, above, mass, weight = _search(
            values, base, size, longest, wanted, False, cut_key, cut_rest, cut_mass, information, entropy, farthest,
            False, SCALE, ROWS, TILE,
        )  # fmt: skip
        rest = (wanted - mass) // tl.maximum(weight, 1) + 1
        is_cut = top_p < 1.0
        cut_key = tl.where(is_cut, key, cut_key)
        cut_rest = tl.where(is_cut, rest, cut_rest)
        cut_mass = tl.where(is_cut, weight, cut_mass)
        kept_mass = tl.where(is_cut, mass + rest * weight, kept_mass)
    if MIN_P:
        lowest = _least_weight_cut(values, base, size, longest, min_p, ROWS, TILE)
        is_cut = (min_p > 0.0) & (lowest > cut_key)
        _, mass = _above(
            values, base, size, longest, lowest, cut_key, cut_rest, cut_mass, information, entropy, farthest,
            False, SCALE, ROWS, TILE,
        )  # fmt: skip
        # All that have the lowest key stay: keys above the one below it.
        cut_key = tl.where(is_cut, lowest - 1, cut_key)
        cut_rest = tl.where(is_cut, 0, cut_rest)
        cut_mass = tl.where(is_cut, 0, cut_mass)
        kept_mass = tl.where(is_cut, mass, kept_mass)
    if TYPICAL:
        is_cut = typical_p < 1.0
        information, entropy = _entropy(
            values, base, size, longest, cut_key, cut_rest, cut_mass, kept_mass, SCALE, ROWS, TILE
        )
        within = _farthest(
            values, base, size, longest, _part(kept_mass, typical_p), cut_key, cut_rest, cut_mass, information,
            entropy, SCALE, ROWS, TILE,
        )  # fmt: skip
        farthest = tl.where(is_cut, within, farthest)
        cut_value = _value(cut_key.to(tl.int32))
        at_cut = _distance(tl.where(cut_value == cut_value, cut_value, 0.0)[:, None], information, entropy)
        cut_mass = tl.where(tl.min(at_cut, 1) <= farthest, cut_mass, 0)
        _, mass = _above(
            values, base, size, longest, none + _LOWEST, cut_key, cut_rest, cut_mass, information, entropy, farthest,
            True, SCALE, ROWS, TILE,
        )  # fmt: skip
        kept_mass = tl.where(is_cut, mass, kept_mass)
    wanted = uniform * (kept_mass >> 24) + ((uniform * (kept_mass & 0xFFFFFF)) >> 24)
    key, above, mass, weight = _search(
        values, base, size, longest, wanted, False, cut_key, cut_rest, cut_mass, information, entropy, farthest,
        TYPICAL, SCALE, ROWS, TILE,
    )  # fmt: skip
    place = _find(values, base, size, longest, key, (wanted - mass) // tl.maximum(weight, 1), ROWS, TILE)
    from_list = tl.load(ids + rows * capacity + place, is_drawn & is_listed, other=0)
    token = tl.where(is_drawn, tl.where(is_listed, from_list, place), first)
    # As `check_finite`: NaN, or a leading infinity of either sign.
    token = tl.where((peak == float("inf")) | (peak == float("-inf")), -2, token)
    tl.store(out + rows, tl.where(has_nan, -1, token), inside)


@triton.jit(do_not_specialize=["num_rows"])
def _largest_kernel(largest, tokens, out, num_rows, num_tiles, ROWS: tl.constexpr, TILES: tl.constexpr):
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    peak, has_nan, first = _peak(largest, tokens, rows, inside, num_tiles, TILES)
    token = tl.where((peak == float("inf")) | (peak == float("-inf")), -2, first)
    tl.store(out + rows, tl.where(has_nan, -1, token), inside)


def mass_scale(vocab_size: int) -> int:
    """Binary places of a weight: as many as the sum over the vocabulary leaves of 62."""
    return min(44, 62 - vocab_size.bit_length())


class ChoiceScratch:
    """Memory for choosing the tokens of up to `num_rows` rows of logits.

    `scaled` [num_rows, V + listed] f32 may hold the logits themselves: they are scaled in place. rows_per_program: more
    than 1 only where that is quicker, in the interpreter; nothing depends on it.
    """

    def __init__(
        self, num_rows: int, vocab_size: int, device: str | torch.device, rows_per_program: int = 1, tile: int = _TILE
    ) -> None:
        self.vocab_size = vocab_size
        self.rows_per_program = rows_per_program
        self.tile = min(tile, triton.next_power_of_2(vocab_size))
        self.num_tiles: int = triton.cdiv(vocab_size, self.tile)
        self.capacity = min(vocab_size, MAX_LISTED)
        self.scaled = torch.empty(num_rows, vocab_size + self.capacity, dtype=torch.float32, device=device)
        self.ids = torch.empty(num_rows, self.capacity, dtype=torch.int32, device=device)
        self.counts = torch.empty(num_rows, dtype=torch.int32, device=device)
        self.masses = torch.empty(num_rows, self.num_tiles, dtype=torch.int64, device=device)

    def peaks(self) -> Peaks:
        """Memory for `find_peaks`."""
        shape, device = (self.scaled.shape[0], self.num_tiles), self.scaled.device
        return Peaks(
            torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int32, device=device)
        )

    @property
    def num_bytes(self) -> int:
        """What it takes, with two peaks."""
        own = sum(tensor.nbytes for tensor in (self.scaled, self.ids, self.counts, self.masses))
        return own + 2 * 8 * self.masses.numel()


@dataclass(frozen=True, slots=True)
class DrawKinds:
    """Which parameters any row of a step has: what none has is not compiled into its kernel."""

    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    typical_p: bool = False


def find_peaks(logits: torch.Tensor, scratch: ChoiceScratch, out: Peaks) -> Peaks:
    """The largest of each tile of logits [R, V] f32, rows contiguous. Returns `out`."""
    num_rows, rows = logits.shape[0], scratch.rows_per_program
    _peaks_kernel[(triton.cdiv(num_rows, rows), scratch.num_tiles)](
        logits, out.largest, out.tokens, num_rows, scratch.vocab_size, logits.stride(0), ROWS=rows, TILE=scratch.tile
    )
    return out


def choose_largest(num_rows: int, peaks: Peaks, scratch: ChoiceScratch, out: torch.Tensor) -> torch.Tensor:
    """The token of the largest logit of each row, the lower id of two; `NOT_A_NUMBER` or `NOT_FINITE`. out: [R] i32."""
    rows = scratch.rows_per_program
    _largest_kernel[(triton.cdiv(num_rows, rows),)](
        peaks.largest, peaks.tokens, out, num_rows, scratch.num_tiles,
        ROWS=rows, TILES=triton.next_power_of_2(scratch.num_tiles),
    )  # fmt: skip
    return out


def choose_tokens(
    logits: torch.Tensor, peaks: Peaks, draws: Draws, kinds: DrawKinds, scratch: ChoiceScratch, out: torch.Tensor
) -> torch.Tensor:
    """A token of each row, as `choose_token` takes it from logits whose edits are made.

    logits: [R, V] f32, rows contiguous, with their `peaks`; a part of `scratch.scaled` is overwritten. Returns out [R]
    i32: the token, `NOT_A_NUMBER` or `NOT_FINITE`.
    """
    num_rows, rows = logits.shape[0], scratch.rows_per_program
    grid, scale = triton.cdiv(num_rows, rows), mass_scale(scratch.vocab_size)
    shape = {"ROWS": rows, "TILE": scratch.tile}
    tiles = triton.next_power_of_2(scratch.num_tiles)
    stride = scratch.scaled.stride(0)
    _weigh_kernel[(grid, scratch.num_tiles)](
        logits, peaks.largest, peaks.tokens, draws.temperature, scratch.scaled, scratch.masses, num_rows,
        scratch.vocab_size, scratch.num_tiles, logits.stride(0), stride, SCALE=scale, TILES=tiles, **shape,
    )  # fmt: skip
    _list_kernel[(grid,)](
        scratch.scaled, scratch.ids, scratch.counts, num_rows, scratch.vocab_size, stride, scratch.capacity,
        num_warps=8, **shape,
    )  # fmt: skip
    _choose_kernel[(grid,)](
        scratch.scaled, scratch.ids, scratch.counts, scratch.masses, peaks.largest, peaks.tokens, draws.temperature,
        draws.top_k, draws.top_p, draws.min_p, draws.typical_p, draws.seeds, draws.choices, draws.positions, out,
        num_rows, scratch.vocab_size, scratch.num_tiles, stride, scratch.capacity,
        TOP_K=kinds.top_k, TOP_P=kinds.top_p, MIN_P=kinds.min_p, TYPICAL=kinds.typical_p, SCALE=scale, TILES=tiles,
        num_warps=8, **shape,
    )  # fmt: skip
    return out
