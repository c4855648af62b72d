"""Chooses a token for each row, as sampling/sampler.py does, without sorting the vocabulary.

A draw depends on probabilities in descending order. Logits are ordered by integer keys, and their weights are
fixed-point numbers, whose sums are exact in any order. The token is therefore found by bisecting the range of keys and
summing the weights above. Weights are exp in f64, rounded to 2^-SCALE of the likeliest. The choice differs from the
reference's only if a bound lies within that rounding, where the reference rounds its own f64 sums.

A few tokens decide. Many programs per row weigh the tokens, find a range of scaled logits that contains the draw or a
filter's cut (draw_range.py), and list its tokens in order of their ids. One program then bisects the list, or the whole
row if no range decides or the list is too short.
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
    excluded_mass,
)
from trunkline_server.backends.cuda.kernels.draw_range import (
    BANDS,
    MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    TYPICAL_P,
    XTC_THRESHOLD,
    bound_of,
    drawn_mass,
    first_range,
    mass_of_tiles,
    number_of,
    range_of,
    real_of,
    store_bands,
    uniform_of,
)
from trunkline_server.backends.cuda.kernels.draw_search import NO_CUT, all_typical, find, mass_of, search

# Most tokens that a row's list holds.
MAX_LISTED = 16384
# Returned instead of a token if a logit is NaN, or if the largest is infinite.
NOT_A_NUMBER = -1
NOT_FINITE = -2
# Elements of a row, and of its list, that are processed at once, at most. Ranges of more elements than the latter are
# narrowed.
TILE = 2048
LIST_TILE = 1024


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
    logits, largest, tokens, draws, scaled, masses, band_masses, band_counts, num_rows, vocab_size, num_tiles, stride,
    scaled_stride, SCALE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    inside = rows < num_rows
    peak, _, _ = _peak(largest, tokens, rows, inside, num_tiles, TILES)
    heat = real_of(draws, TEMPERATURE, rows, inside).to(tl.float32)
    heat = tl.where(heat == 0.0, 1.0, heat)
    columns = tile * TILE + tl.arange(0, TILE)
    known = inside[:, None] & (columns < vocab_size)[None, :]
    x = tl.load(logits + rows[:, None] * stride + columns[None, :], known, other=float("-inf"))
    x = tl.div_rn(x - peak[:, None], heat[:, None] + tl.zeros_like(x))
    x = tl.where(x == x, x, float("-inf"))
    tl.store(scaled + rows[:, None] * scaled_stride + columns[None, :], x, known)
    tl.store(masses + rows * num_tiles + tile, tl.sum(tl.where(known, mass_of(x, SCALE), 0), 1), inside)
    base = tl.zeros((ROWS,), tl.int32)
    store_bands(x, known, base, 0, BANDS, band_masses, band_counts, rows, inside, tile, num_tiles, SCALE)


@triton.jit(do_not_specialize=["num_rows"])
def _narrow_kernel(
    values, draws, masses, band_masses, band_counts, num_rows, vocab_size, num_tiles, stride, few,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Divides the band of rows whose band has more elements than `few`."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    inside = rows < num_rows
    total = mass_of_tiles(masses, rows, inside, num_tiles, TILES)
    band, count, _, _ = first_range(draws, band_masses, band_counts, rows, inside, total, vocab_size, num_tiles, TILES)
    inside = inside & (band < BANDS) & (count > few)
    if tl.max(inside.to(tl.int32), 0) > 0:
        columns = tile * TILE + tl.arange(0, TILE)
        known = inside[:, None] & (columns < vocab_size)[None, :]
        x = tl.load(values + rows[:, None] * stride + columns[None, :], known, other=float("-inf"))
        store_bands(x, known, band * BANDS, BANDS, 1, band_masses, band_counts, rows, inside, tile, num_tiles, SCALE)


@triton.jit(do_not_specialize=["num_rows"])
def _list_kernel(
    values, ids, draws, masses, band_masses, band_counts, num_rows, vocab_size, num_tiles, stride, few, capacity,
    ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Copies the elements of each row's range, and their ids, behind the row, from vocab_size on."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    inside = rows < num_rows
    total = mass_of_tiles(masses, rows, inside, num_tiles, TILES)
    low_slot, high_slot, low, high, count, _ = range_of(
        draws, band_masses, band_counts, rows, inside, total, vocab_size, num_tiles, few, TILES
    )
    inside = inside & (low > 0) & (count <= capacity)
    if tl.max(inside.to(tl.int32), 0) > 0:
        tiles = tl.arange(0, TILES)[None, :]
        before = inside[:, None] & (tiles < tile)
        slots = band_counts + rows[:, None] * (2 * BANDS) * num_tiles + tiles
        counts = tl.load(slots + low_slot[:, None] * num_tiles, before, other=0)
        counts -= tl.load(slots + high_slot[:, None] * num_tiles, before & (high_slot >= 0)[:, None], other=0)
        columns = tile * TILE + tl.arange(0, TILE)
        known = inside[:, None] & (columns < vocab_size)[None, :]
        x = tl.load(values + rows[:, None] * stride + columns[None, :], known, other=float("-inf"))
        is_listed = known & (x >= bound_of(low)[:, None])
        is_listed = is_listed & ((x < bound_of(high)[:, None]) | (high_slot < 0)[:, None])
        place = tl.sum(counts, 1)[:, None] + tl.cumsum(is_listed.to(tl.int32), 1) - 1
        tl.store(values + rows[:, None] * stride + vocab_size + place, x, is_listed)
        tl.store(ids + rows[:, None] * capacity + place, columns[None, :] + tl.zeros_like(place), is_listed)


@triton.jit(do_not_specialize=["num_rows"])
def _choose_kernel(
    values, ids, draws, masses, band_masses, band_counts, largest, tokens, out, num_rows, vocab_size, num_tiles, stride,
    few, capacity, FILTERS: tl.constexpr, RARE: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr,
    TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """FILTERS: whether top-k, top-p and min-p are computed; RARE: typical-p and XTC."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    peak, has_nan, first = _peak(largest, tokens, rows, inside, num_tiles, TILES)
    total = mass_of_tiles(masses, rows, inside, num_tiles, TILES)
    uniform, has_xtc = uniform_of(draws, rows, inside)
    _, _, low, _, count, mass_above = range_of(
        draws, band_masses, band_counts, rows, inside, total, vocab_size, num_tiles, few, TILES
    )
    is_listed = (low > 0) & (count <= capacity)
    is_drawn = inside & (real_of(draws, TEMPERATURE, rows, inside).to(tl.float32) != 0.0) & (total > 0)
    base = rows * stride + tl.where(is_listed, vocab_size, 0)
    size = tl.where(is_drawn, tl.where(is_listed, count, vocab_size), 0)
    elements = (values, base, size, tl.max(size, 0))

    # Initially nothing is cut or atypical.
    none = tl.zeros((ROWS,), tl.int64)
    cut = (none + NO_CUT, none, none)
    typical = all_typical(none)
    if FILTERS:
        # A program has one row on the device, and its own filters.
        top_k = number_of(draws, TOP_K, rows, inside)
        if tl.max(top_k, 0) > 0:
            cut, total = cut_by_count(elements, top_k, vocab_size, total, SCALE, TILE)
        top_p = tl.where(inside, real_of(draws, TOP_P, rows, inside), 1.0)
        if tl.min(top_p, 0) < 1.0:
            cut, total = cut_by_mass(elements, top_p, cut, total, SCALE, TILE)
        min_p = real_of(draws, MIN_P, rows, inside)
        if tl.max(min_p, 0) > 0.0:
            cut, total = cut_by_weight(elements, min_p, cut, total, SCALE, TILE)
    excluded = none
    if RARE:
        typical_p, threshold = real_of(draws, TYPICAL_P, rows, inside), real_of(draws, XTC_THRESHOLD, rows, inside)
        typical, cut, total = cut_by_information(elements, typical_p, cut, total, SCALE, TILE)
        excluded = excluded_mass(elements, threshold, cut, typical, total, has_xtc, SCALE, TILE)
    wanted = excluded + drawn_mass(uniform, total - excluded) - tl.where(is_listed, mass_above, 0)
    key, _, mass, weight = search(elements, wanted, False, cut, typical, RARE, SCALE, TILE)
    place = find(elements, key, (wanted - mass) // tl.maximum(weight, 1), TILE)
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
        self.masses = torch.empty(num_rows, self.num_tiles, dtype=torch.int64, device=device)
        bands = (num_rows, 2 * BANDS.value, self.num_tiles)
        self.band_masses = torch.empty(bands, dtype=torch.int64, device=device)
        self.band_counts = torch.empty(bands, dtype=torch.int32, device=device)

    def peaks(self) -> Peaks:
        """Allocates the output of `find_peaks`."""
        shape, device = (self.scaled.shape[0], self.num_tiles), self.scaled.device
        return Peaks(
            torch.empty(shape, dtype=torch.float32, device=device), torch.empty(shape, dtype=torch.int32, device=device)
        )


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
    logits: torch.Tensor, peaks: Peaks, draws: torch.Tensor, scratch: ChoiceScratch, out: torch.Tensor,
    *, filters: bool, rare: bool,
) -> torch.Tensor:  # fmt: skip
    """Draws a token of each row, as `choose_token` does after its edits.

    logits: [R, V] f32, rows contiguous, with their `peaks`; a part of `scratch.scaled` is overwritten. draws: [R,
    NUM_COLUMNS] i64, see draw_range.py. filters: whether any row has top-k, top-p or min-p; rare: typical-p or XTC.
    Returns out [R] i32: the token, `NOT_A_NUMBER` or `NOT_FINITE`.
    """
    num_rows, rows, vocab_size = logits.shape[0], scratch.rows_per_program, scratch.vocab_size
    scaled, stride, num_tiles = scratch.scaled, scratch.scaled.stride(0), scratch.num_tiles
    grid, scale = triton.cdiv(num_rows, rows), mass_scale(vocab_size)
    shape = {"ROWS": rows, "TILES": triton.next_power_of_2(num_tiles)}
    bands = (draws, scratch.masses, scratch.band_masses, scratch.band_counts)
    list_tile = min(LIST_TILE, scratch.tile)
    by_tile = {**shape, "TILE": scratch.tile, "num_warps": 8}
    _weigh_kernel[(grid, num_tiles)](
        logits, peaks.largest, peaks.tokens, draws, scaled, *bands[1:], num_rows, vocab_size, num_tiles,
        logits.stride(0), stride, SCALE=scale, **by_tile,
    )  # fmt: skip
    _narrow_kernel[(grid, num_tiles)](
        scaled, *bands, num_rows, vocab_size, num_tiles, stride, list_tile, SCALE=scale, **by_tile
    )
    _list_kernel[(grid, num_tiles)](
        scaled, scratch.ids, *bands, num_rows, vocab_size, num_tiles, stride, list_tile, scratch.capacity,
        **by_tile,
    )  # fmt: skip
    _choose_kernel[(grid,)](
        scaled, scratch.ids, *bands, peaks.largest, peaks.tokens, out, num_rows, vocab_size, num_tiles, stride,
        list_tile, scratch.capacity, FILTERS=filters, RARE=rare, SCALE=scale, TILE=list_tile, **shape,
    )  # fmt: skip
    return out
