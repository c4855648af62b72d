"""Chooses a token for each row, as sampling/sampler.py does, without sorting the vocabulary.

A draw depends on probabilities in descending order. Logits are ordered by integer keys, and their weights are
fixed-point numbers, whose sums are exact in any order. The token is therefore found by bisecting the range of keys and
summing the weights above. Weights are exp in f64, rounded to 2^-SCALE of the likeliest. The choice differs from the
reference's only if a bound lies within that rounding, where the reference rounds its own f64 sums.

A few tokens have most of the weight. Those within `NEAR` of the likeliest are listed in order of their ids, and all
passes but the first run only over the list. If the list cannot decide (because it is full or the draw lies beyond it),
the same code runs over the whole row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.draw_filters import (
    cut_by_count,
    cut_by_information,
    cut_by_mass,
    cut_by_weight,
    drawn_mass,
    excluded_mass,
    list_decides,
)
from trunkline_server.backends.cuda.kernels.draw_search import FARTHEST, NEAR, NO_CUT, find, mass_of, search

# Most tokens that a row's list holds.
MAX_LISTED = 8192
# Returned instead of a token if a logit is NaN, or if the largest is infinite.
NOT_A_NUMBER = -1
NOT_FINITE = -2
# Elements of a row that are processed at once, at most.
TILE = 2048


@dataclass(frozen=True, slots=True)
class Draws:
    """The parameters of draws, [R] each.

    temperature: f32, 0 takes the largest; top_k: i32, 0 keeps all; top_p, min_p, typical_p, xtc_probability,
    xtc_threshold: f64; seeds: i64, the bits of a u64; choices, positions: i32, the bits of a u32.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    typical_p: torch.Tensor
    xtc_probability: torch.Tensor
    xtc_threshold: torch.Tensor
    seeds: torch.Tensor
    choices: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, slots=True)
class Peaks:
    """The largest logit of each tile, [R, tiles] each. largest: f32, NaN if any is; tokens: i32, the lowest id."""

    largest: torch.Tensor
    tokens: torch.Tensor


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
    """Returns, for whole rows, the largest logit, whether one is NaN, and the lowest id of the largest."""
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
    tl.store(masses + rows * num_tiles + tile, tl.sum(tl.where(known, mass_of(x, SCALE), 0), 1), inside)


@triton.jit(do_not_specialize=["num_rows"])
def _list_kernel(values, ids, counts, num_rows, vocab_size, stride, capacity, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Copies values of at least -NEAR, and their ids, behind the row, from vocab_size on. counts may pass capacity."""
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
def _random(seeds, choices, positions, xtc_probabilities, rows, inside, XTC: tl.constexpr):
    """Returns the number below 2^24 that draws a row's token, and whether XTC applies to it."""
    seed = tl.load(seeds + rows, inside, other=0)
    position = tl.load(positions + rows, inside, other=0)
    choice = tl.load(choices + rows, inside, other=0)
    word, xtc_word, _, _ = tl.philox(seed, position, choice, choice * 0, choice * 0)
    has_xtc = inside & False
    if XTC:
        xtc_probability = tl.load(xtc_probabilities + rows, inside, other=0.0)
        has_xtc = (xtc_word >> 8).to(tl.float64) < xtc_probability * (1 << 24)
    return (word >> 8).to(tl.int64), has_xtc


@triton.jit(do_not_specialize=["num_rows"])
def _choose_kernel(
    values, ids, counts, masses, largest, tokens, temperature, top_ks, top_ps, min_ps, typical_ps, xtc_probabilities,
    xtc_thresholds, seeds, choices, positions, out, num_rows, vocab_size, num_tiles, stride, capacity,
    TOP_K: tl.constexpr, TOP_P: tl.constexpr, MIN_P: tl.constexpr, TYPICAL: tl.constexpr, XTC: tl.constexpr,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
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
    uniform, has_xtc = _random(seeds, choices, positions, xtc_probabilities, rows, inside, XTC)

    count = tl.load(counts + rows, inside, other=0)
    listed = tl.where(count <= capacity, count, 0)
    offset = rows * stride + vocab_size
    is_listed = (count <= capacity) & list_decides(
        values, offset, listed, total, uniform, top_k, top_p, min_p, typical_p, has_xtc, vocab_size, SCALE, ROWS, TILE
    )
    is_drawn = inside & (heat != 0.0) & (total > 0)
    base = tl.where(is_listed, offset, rows * stride)
    size = tl.where(is_drawn, tl.where(is_listed, listed, vocab_size), 0)
    longest = tl.max(size, 0)

    # Initially nothing is cut or atypical.
    none = tl.zeros((ROWS,), tl.int64)
    cut_key, cut_rest, cut_mass = none + NO_CUT, none, none
    information = none.to(tl.float64)
    entropy = information
    farthest = none + FARTHEST
    if TOP_K:
        cut_key, cut_rest, cut_mass, total = cut_by_count(
            values, base, size, longest, top_k, vocab_size, total, SCALE, ROWS, TILE
        )
    if TOP_P:
        cut_key, cut_rest, cut_mass, total = cut_by_mass(
            values, base, size, longest, top_p, cut_key, cut_rest, cut_mass, total, SCALE, ROWS, TILE
        )
    if MIN_P:
        cut_key, cut_rest, cut_mass, total = cut_by_weight(
            values, base, size, longest, min_p, cut_key, cut_rest, cut_mass, total, SCALE, ROWS, TILE
        )
    if TYPICAL:
        information, entropy, farthest, cut_mass, total = cut_by_information(
            values, base, size, longest, typical_p, cut_key, cut_rest, cut_mass, total, SCALE, ROWS, TILE
        )
    excluded = none
    if XTC:
        excluded = excluded_mass(
            values, base, size, longest, tl.load(xtc_thresholds + rows, inside, other=1.0), cut_key, cut_rest, cut_mass,
            information, entropy, farthest, total, has_xtc, SCALE, ROWS, TILE,
        )  # fmt: skip
    wanted = excluded + drawn_mass(uniform, total - excluded)
    key, _, mass, weight = search(
        values, base, size, longest, wanted, False, cut_key, cut_rest, cut_mass, information, entropy, farthest,
        TYPICAL, SCALE, ROWS, TILE,
    )  # fmt: skip
    place = find(values, base, size, longest, key, (wanted - mass) // tl.maximum(weight, 1), ROWS, TILE)
    from_list = tl.load(ids + rows * capacity + place, is_drawn & is_listed, other=0)
    token = tl.where(is_drawn, tl.where(is_listed, from_list, place), first)
    # Same refusals as `check_finite`: NaN, or a largest logit that is infinite.
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
    """Returns the binary places of a weight: as many as fit 62 bits if summed over the vocabulary."""
    return min(44, 62 - vocab_size.bit_length())


class ChoiceScratch:
    """Memory for choosing the tokens of up to `num_rows` rows of logits.

    `scaled` [num_rows, V + listed] f32 may hold the logits themselves, which are then scaled in place.
    rows_per_program: more than 1 only for speed in the interpreter; results do not depend on it.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: str | torch.device, rows_per_program: int = 1) -> None:
        self.vocab_size = vocab_size
        self.rows_per_program = rows_per_program
        self.tile = min(TILE, triton.next_power_of_2(vocab_size))
        self.num_tiles: int = triton.cdiv(vocab_size, self.tile)
        self.capacity = min(vocab_size, MAX_LISTED)
        self.scaled = torch.empty(num_rows, vocab_size + self.capacity, dtype=torch.float32, device=device)
        self.ids = torch.empty(num_rows, self.capacity, dtype=torch.int32, device=device)
        self.counts = torch.empty(num_rows, dtype=torch.int32, device=device)
        self.masses = torch.empty(num_rows, self.num_tiles, dtype=torch.int64, device=device)

    def peaks(self) -> Peaks:
        """Allocates the output of `find_peaks`."""
        shape, device = (self.scaled.shape[0], self.num_tiles), self.scaled.device
        return Peaks(
            torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int32, device=device)
        )


@dataclass(frozen=True, slots=True)
class DrawKinds:
    """The parameters that at least one row of a step has; the others are not compiled into its kernel."""

    top_k: bool = False
    top_p: bool = False
    min_p: bool = False
    typical_p: bool = False
    xtc: bool = False


def find_peaks(logits: torch.Tensor, scratch: ChoiceScratch, out: Peaks) -> Peaks:
    """Finds the largest logit of each tile of logits [R, V] f32, rows contiguous. Returns `out`."""
    num_rows, rows = logits.shape[0], scratch.rows_per_program
    _peaks_kernel[(triton.cdiv(num_rows, rows), scratch.num_tiles)](
        logits, out.largest, out.tokens, num_rows, scratch.vocab_size, logits.stride(0), ROWS=rows, TILE=scratch.tile
    )
    return out


def choose_largest(num_rows: int, peaks: Peaks, scratch: ChoiceScratch, out: torch.Tensor) -> torch.Tensor:
    """Chooses the largest logit of each row, ties by lower id.

    out: [R] i32, the token, `NOT_A_NUMBER` or `NOT_FINITE`. Returns out.
    """
    rows = scratch.rows_per_program
    _largest_kernel[(triton.cdiv(num_rows, rows),)](
        peaks.largest, peaks.tokens, out, num_rows, scratch.num_tiles,
        ROWS=rows, TILES=triton.next_power_of_2(scratch.num_tiles),
    )  # fmt: skip
    return out


def choose_tokens(
    logits: torch.Tensor, peaks: Peaks, draws: Draws, kinds: DrawKinds, scratch: ChoiceScratch, out: torch.Tensor
) -> torch.Tensor:
    """Draws a token of each row, as `choose_token` does after its edits.

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
        draws.top_k, draws.top_p, draws.min_p, draws.typical_p, draws.xtc_probability, draws.xtc_threshold, draws.seeds,
        draws.choices, draws.positions, out,
        num_rows, scratch.vocab_size, scratch.num_tiles, stride, scratch.capacity,
        TOP_K=kinds.top_k, TOP_P=kinds.top_p, MIN_P=kinds.min_p, TYPICAL=kinds.typical_p, XTC=kinds.xtc, SCALE=scale,
        TILES=tiles, num_warps=8, **shape,
    )  # fmt: skip
    return out
