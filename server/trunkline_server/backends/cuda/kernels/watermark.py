"""Applies the watermark of sampling/watermark.py to rows of logits, to the bit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

# Counters of Philox per program, each of which decides four tokens.
_TILE = 1024
_DOMAIN = tl.constexpr(1)


@dataclass(frozen=True, slots=True)
class WatermarkEdits:
    """The watermark parameters of R rows.

    green_below: [R] i32, bits of a u32: words below it make a token green, 0: no watermark. deltas: [R] f32; keys: [R]
    i64. contexts: [R] i32, the token before the sampled one; pending: [R] i32, the index of that token in `previous`
    instead, -1 for none.
    """

    green_below: torch.Tensor
    deltas: torch.Tensor
    keys: torch.Tensor
    contexts: torch.Tensor
    pending: torch.Tensor


@triton.jit
def _watermark_kernel(
    logits, green_below, deltas, keys, contexts, pending, previous, vocab_size, stride, TILE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    below = tl.load(green_below + row).to(tl.uint32, bitcast=True)
    if below != 0:
        place = tl.load(pending + row)
        context = tl.where(place >= 0, tl.load(previous + place, place >= 0, other=0), tl.load(contexts + row))
        first = tl.program_id(1) * TILE
        counters = first + tl.arange(0, TILE)
        zeros = counters * 0
        w0, w1, w2, w3 = tl.philox(tl.load(keys + row), zeros + context, counters, zeros + _DOMAIN, zeros)
        # Brings the words into the order of the tokens.
        words = tl.interleave(tl.interleave(w0, w2), tl.interleave(w1, w3))
        tokens = first * 4 + tl.arange(0, TILE * 4)
        inside = tokens < vocab_size
        values = tl.load(logits + row * stride + tokens, inside, other=0.0)
        lifted = tl.where(words < below, values + tl.load(deltas + row), values)
        tl.store(logits + row * stride + tokens, lifted, inside)


def lift_green(logits: torch.Tensor, edits: WatermarkEdits, previous: torch.Tensor) -> None:
    """Adds deltas to the green tokens of rows of logits [R, V] f32, in place. previous: see `apply_token_edits`."""
    num_rows, vocab_size = logits.shape
    _watermark_kernel[(num_rows, triton.cdiv(vocab_size, 4 * _TILE))](
        logits, edits.green_below, edits.deltas, edits.keys, edits.contexts, edits.pending, previous, vocab_size,
        logits.stride(0), TILE=_TILE,
    )  # fmt: skip
