"""Edits logits before a draw: biases, penalties, end tokens, masks, `top_n_sigma`. `watermark.py` has the watermark,
which comes first.

Order and arithmetic are those of sampling/processors.py, to the bit. Each token that a row's parameters touch is an
entry of a sparse list, entry i of `begin[row]` to `begin[row + 1]`, so no table of counts [S, V] is needed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

# Flags of an entry of `TokenEdits`.
SEEN = 1
FORBIDDEN = 2

_TILE = 4096
_ENTRIES = 256


@dataclass(frozen=True, slots=True)
class BiasEdits:
    """Biases [E] in rounds; within a round, no token of a row occurs twice.

    begin: [R + 1] i32; num_rounds: [R] i32; tokens, rounds: [E] i32; values: [E] f32.
    """

    begin: torch.Tensor
    num_rounds: torch.Tensor
    tokens: torch.Tensor
    values: torch.Tensor
    rounds: torch.Tensor


@dataclass(frozen=True, slots=True)
class TokenEdits:
    """Tokens [E] that penalties and `min_tokens` affect, each once per row.

    begin: [R + 1] i32; tokens, counts (occurrences in the output), flags: [E] i32; repetition, presence, frequency: [R]
    f32. pending: [R] i32, the index in `previous` of the row's newest token, which the lists lack; -1 for none.
    """

    begin: torch.Tensor
    tokens: torch.Tensor
    counts: torch.Tensor
    flags: torch.Tensor
    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor
    pending: torch.Tensor


@triton.jit
def _allowed_kernel(
    logits, mask_rows, masks, out, vocab_size, logits_stride, mask_stride, out_stride, TILE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    tokens = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = tokens < vocab_size
    values = tl.load(logits + row * logits_stride + tokens, inside, other=0.0)
    mask_row = tl.load(mask_rows + row).to(tl.int64)
    if mask_row >= 0:
        words = tl.load(masks + mask_row * mask_stride + (tokens >> 5), inside, other=0)
        values = tl.where(((words >> (tokens & 31)) & 1) != 0, values, float("-inf"))
    tl.store(out + row * out_stride + tokens, values, inside)


@triton.jit
def _bias_kernel(logits, begin, num_rounds, tokens, values, rounds, stride, ENTRIES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    first, last = tl.load(begin + row), tl.load(begin + row + 1)
    for number in range(tl.load(num_rounds + row)):
        for start in range(first, last, ENTRIES):
            entries = start + tl.arange(0, ENTRIES)
            mine = (entries < last) & (tl.load(rounds + entries, entries < last, other=-1) == number)
            places = logits + row * stride + tl.load(tokens + entries, mine, other=0)
            tl.store(places, tl.load(places, mine, other=0.0) + tl.load(values + entries, mine, other=0.0), mine)
        # The next round may read what another thread wrote in this one.
        tl.debug_barrier()


@triton.jit
def _penalized(values, count, is_seen, repetition, presence, frequency):
    repeated = tl.where(values > 0.0, tl.div_rn(values, repetition), values * repetition)
    values = tl.where(is_seen, repeated, values)
    lowered = values - (count.to(tl.float32) * frequency + presence)
    return tl.where(count > 0, lowered, values)


@triton.jit
def _token_kernel(
    logits, begin, tokens, counts, flags, repetition, presence, frequency, pending, previous, stride,
    ENTRIES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    first, last = tl.load(begin + row), tl.load(begin + row + 1)
    factor, once, each = tl.load(repetition + row), tl.load(presence + row), tl.load(frequency + row)
    place = tl.load(pending + row)
    newest = tl.load(previous + place, place >= 0, other=-1)
    is_listed = tl.zeros((ENTRIES,), tl.int32)
    for start in range(first, last, ENTRIES):
        entries = start + tl.arange(0, ENTRIES)
        mine = entries < last
        token = tl.load(tokens + entries, mine, other=-2)
        places = logits + row * stride + token
        is_newest = token == newest
        is_listed = is_listed | is_newest.to(tl.int32)
        flag = tl.load(flags + entries, mine, other=0)
        count = tl.load(counts + entries, mine, other=0) + is_newest.to(tl.int32)
        is_seen = ((flag & 1) != 0) | is_newest
        values = _penalized(tl.load(places, mine, other=0.0), count, is_seen, factor, once, each)
        tl.store(places, tl.where((flag & 2) != 0, float("-inf"), values), mine)
    if (newest >= 0) & (tl.max(is_listed, 0) == 0):
        lane = tl.arange(0, ENTRIES)
        only = lane == 0
        places = logits + row * stride + newest + lane * 0
        ones = lane * 0 + 1
        values = _penalized(tl.load(places, only, other=0.0), ones, ones != 0, factor, once, each)
        tl.store(places, values, only)


@triton.jit
def _sigma_kernel(logits, widths, vocab_size, stride, TILE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    width = tl.load(widths + row)
    if width > 0.0:
        largest = tl.full((TILE,), float("-inf"), tl.float32)
        count = tl.zeros((TILE,), tl.int64)
        total = tl.zeros((TILE,), tl.float64)
        for start in range(0, vocab_size, TILE):
            tokens = start + tl.arange(0, TILE)
            x = tl.load(logits + row * stride + tokens, tokens < vocab_size, other=float("-inf"))
            largest = tl.maximum(largest, x)
            is_finite = x > float("-inf")
            count += is_finite.to(tl.int64)
            total += tl.where(is_finite, x, 0.0).to(tl.float64)
        number = tl.sum(count, 0).to(tl.float64)
        mean = tl.sum(total, 0) / number
        squares = tl.zeros((TILE,), tl.float64)
        for start in range(0, vocab_size, TILE):
            tokens = start + tl.arange(0, TILE)
            x = tl.load(logits + row * stride + tokens, tokens < vocab_size, other=float("-inf"))
            difference = tl.where(x > float("-inf"), x.to(tl.float64) - mean, 0.0)
            squares += difference * difference
        sigma = tl.sqrt(tl.sum(squares, 0) / number)
        lowest = tl.max(largest, 0).to(tl.float64) - width.to(tl.float64) * sigma
        for start in range(0, vocab_size, TILE):
            tokens = start + tl.arange(0, TILE)
            places = logits + row * stride + tokens
            x = tl.load(places, tokens < vocab_size, other=0.0)
            tl.store(places, tl.where(x.to(tl.float64) >= lowest, x, float("-inf")), tokens < vocab_size)


def allowed_logits(
    logits: torch.Tensor, mask_rows: torch.Tensor, masks: torch.Tensor, out: torch.Tensor
) -> torch.Tensor:
    """Copies logits and sets the tokens that a row's mask excludes to -inf.

    logits, out: [R, V] f32, rows contiguous; mask_rows: [R] i32, a row of `masks`, or -1 for all tokens; masks: [M, W]
    i32, bit i % 32 of word i / 32 is token i. Returns `out`.
    """
    num_rows, vocab_size = logits.shape
    _allowed_kernel[(num_rows, triton.cdiv(vocab_size, _TILE))](
        logits, mask_rows, masks, out, vocab_size, logits.stride(0), masks.stride(0), out.stride(0), TILE=_TILE
    )
    return out


def add_biases(logits: torch.Tensor, edits: BiasEdits) -> None:
    """Adds each row's biases to its logits [R, V] f32, in place, one round after the other."""
    _bias_kernel[(logits.shape[0],)](
        logits, edits.begin, edits.num_rounds, edits.tokens, edits.values, edits.rounds, logits.stride(0),
        ENTRIES=_ENTRIES, num_warps=4,
    )  # fmt: skip


def apply_token_edits(logits: torch.Tensor, edits: TokenEdits, previous: torch.Tensor) -> None:
    """Applies repetition, presence and frequency penalties, then -inf for `FORBIDDEN`, to logits [R, V] f32 in place.

    previous: [*] i32, tokens of the previous step, which `edits.pending` indexes; -1: none was sampled.
    """
    _token_kernel[(logits.shape[0],)](
        logits, edits.begin, edits.tokens, edits.counts, edits.flags, edits.repetition, edits.presence,
        edits.frequency, edits.pending, previous, logits.stride(0),
        ENTRIES=_ENTRIES, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


def keep_within_sigmas(logits: torch.Tensor, widths: torch.Tensor) -> None:
    """Sets logits [R, V] f32 to -inf, in place, that are further below the largest than `widths` standard deviations.

    widths: [R] f32, 0 keeps all. Tokens at -inf do not count. A row with NaN or without a finite logit has no draw.
    """
    num_rows, vocab_size = logits.shape
    _sigma_kernel[(num_rows,)](logits, widths, vocab_size, logits.stride(0), TILE=1024, num_warps=8)
