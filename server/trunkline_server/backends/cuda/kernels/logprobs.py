"""Logarithms of the model's own probabilities: of one token, with its rank, and of the likeliest tokens.

As `log_softmax` and `top_logprobs` of sampling/sampler.py: differences in f64, rounded once to f32. The sum of weights
is fixed-point (see choose.py), so it does not depend on the order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.choose import ChoiceScratch, Peaks, _peak, mass_scale
from trunkline_server.backends.cuda.kernels.draw_range import mass_of_tiles


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Results of R rows. logprobs: [R] f32, of the row's token; ranks: [R] i32, how many logits are not below its own;
    top_tokens [R, N] i32 and top_logprobs [R, N] f32: likeliest first, ties by lower id.
    """

    logprobs: torch.Tensor
    ranks: torch.Tensor
    top_tokens: torch.Tensor
    top_logprobs: torch.Tensor


@triton.jit(do_not_specialize=["num_rows"])
def _sum_kernel(
    logits, largest, tokens, chosen, masses, ranks, num_rows, vocab_size, num_tiles, stride,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    tile = tl.program_id(1)
    inside = rows < num_rows
    peak, _, _ = _peak(largest, tokens, rows, inside, num_tiles, TILES)
    columns = tile * TILE + tl.arange(0, TILE)
    known = inside[:, None] & (columns < vocab_size)[None, :]
    x = tl.load(logits + rows[:, None] * stride + columns[None, :], known, other=float("-inf")).to(tl.float64)
    shifted = x - peak[:, None].to(tl.float64)
    weights = (tl.exp(tl.where(known & (shifted == shifted), shifted, float("-inf"))) * (1 << SCALE) + 0.5).to(tl.int64)
    tl.store(masses + rows * num_tiles + tile, tl.sum(weights, 1), inside)
    token = tl.load(chosen + rows, inside, other=-1)
    own = tl.load(logits + rows * stride + token, inside & (token >= 0), other=float("inf")).to(tl.float64)
    tl.store(ranks + rows * num_tiles + tile, tl.sum((known & (x >= own[:, None])).to(tl.int32), 1), inside)


@triton.jit
def _logprob(x, peak, log_of_sum):
    return (x.to(tl.float64) - peak[:, None].to(tl.float64) - log_of_sum[:, None]).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _logprobs_kernel(
    logits, largest, masses, ranks, chosen, num_top, out_logprobs, out_ranks, out_top_tokens, out_top_logprobs,
    num_rows, vocab_size, num_tiles, stride, max_top,
    SCALE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = rows < num_rows
    tiles = tl.arange(0, TILES)
    known_tiles = inside[:, None] & (tiles < num_tiles)[None, :]
    peaks = tl.load(largest + rows[:, None] * num_tiles + tiles[None, :], known_tiles, other=float("-inf"))
    peak = tl.max(peaks, 1)
    mass = mass_of_tiles(masses, rows, inside, num_tiles, TILES)
    log_of_sum = tl.log(mass.to(tl.float64) / (1 << SCALE))
    token = tl.load(chosen + rows, inside, other=-1)
    has_token = inside & (token >= 0)
    own = tl.load(logits + rows * stride + token, has_token, other=0.0)
    own_logprob = _logprob(own[:, None], peak, log_of_sum)
    tl.store(out_logprobs + rows, tl.max(own_logprob, 1), has_token)
    rank = tl.sum(tl.load(ranks + rows[:, None] * num_tiles + tiles[None, :], known_tiles, other=0), 1)
    tl.store(out_ranks + rows, rank, has_token)
    wanted = tl.load(num_top + rows, inside, other=0)
    before = tl.full((ROWS,), float("inf"), tl.float32)
    before_token = tl.full((ROWS,), -1, tl.int32)
    for number in range(tl.max(wanted, 0)):
        best = tl.full((ROWS,), float("-inf"), tl.float32)
        best_token = tl.full((ROWS,), 0x7FFFFFFF, tl.int32)
        for tile in range(num_tiles):
            bound = tl.load(largest + rows * num_tiles + tile, inside, other=float("-inf"))
            # A tile whose peak is less likely than the best so far has nothing better.
            reach = tl.max(_logprob(bound[:, None], peak, log_of_sum), 1)
            if tl.max((inside & (number < wanted) & (reach >= best)).to(tl.int32), 0) > 0:
                columns = tile * TILE + tl.arange(0, TILE)
                known = inside[:, None] & (columns < vocab_size)[None, :]
                x = tl.load(logits + rows[:, None] * stride + columns[None, :], known, other=float("-inf"))
                x = _logprob(x, peak, log_of_sum)
                ids = columns[None, :] + tl.zeros((ROWS, TILE), tl.int32)
                is_left = (x < before[:, None]) | ((x == before[:, None]) & (ids > before_token[:, None]))
                is_left = is_left & known
                top = tl.max(tl.where(is_left, x, float("-inf")), 1)
                id_of_top = tl.min(tl.where(is_left & (x == top[:, None]), ids, 0x7FFFFFFF), 1)
                is_better = (top > best) | ((top == best) & (id_of_top < best_token))
                best = tl.where(is_better, top, best)
                best_token = tl.where(is_better, id_of_top, best_token)
        places = rows * max_top + number
        tl.store(out_top_tokens + places, best_token, inside & (number < wanted))
        tl.store(out_top_logprobs + places, best, inside & (number < wanted))
        before, before_token = best, best_token


def find_logprobs(
    logits: torch.Tensor,
    peaks: Peaks,
    chosen: torch.Tensor,
    num_top: torch.Tensor,
    scratch: ChoiceScratch,
    out: Logprobs,
) -> Logprobs:
    """Computes `Logprobs` of each row of logits [R, V] f32, rows contiguous, with their `peaks`.

    chosen: [R] i32, the row's token; -1 leaves its logprob and rank unchanged. num_top: [R] i32, how many of the
    likeliest. Sums in `scratch` are overwritten. Returns `out`.
    """
    num_rows, rows = logits.shape[0], scratch.rows_per_program
    grid = triton.cdiv(num_rows, rows)
    shape = {
        "SCALE": mass_scale(scratch.vocab_size), "ROWS": rows, "TILES": triton.next_power_of_2(scratch.num_tiles),
        "TILE": scratch.tile,
    }  # fmt: skip
    _sum_kernel[(grid, scratch.num_tiles)](
        logits, peaks.largest, peaks.tokens, chosen, scratch.masses, scratch.band_counts, num_rows, scratch.vocab_size,
        scratch.num_tiles, logits.stride(0), **shape,
    )  # fmt: skip
    _logprobs_kernel[(grid,)](
        logits, peaks.largest, scratch.masses, scratch.band_counts, chosen, num_top, out.logprobs, out.ranks,
        out.top_tokens, out.top_logprobs, num_rows, scratch.vocab_size, scratch.num_tiles, logits.stride(0),
        out.top_tokens.stride(0), num_warps=8, **shape,
    )  # fmt: skip
    return out
