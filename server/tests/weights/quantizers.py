"""Simple quantisers for formats that the `gguf` package can only read: each group by its range, no search."""

from __future__ import annotations

from functools import partial

import numpy as np
from trunkline_server.weights.dequantize import IQ4_LEVELS


def quantize_rows(values: np.ndarray, format_name: str) -> np.ndarray:
    """Quantises rows [N, K] of f32 to bytes [N, row bytes]. Layouts: `block_q4_K` and so on in ggml-common.h."""
    blocks = values.astype(np.float32).reshape(-1, 32 if format_name == "IQ4_NL" else 256)
    return QUANTIZERS[format_name](blocks).reshape(values.shape[0], -1)


def _halves(values: np.ndarray) -> np.ndarray:
    return values.astype("<f2").reshape(-1, 1).view(np.uint8)


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """Divides, with 0 where the denominator is 0."""
    return np.divide(
        numerator, denominator, out=np.zeros(np.broadcast(numerator, denominator).shape), where=denominator != 0
    )


def _with_minima(blocks: np.ndarray, bits: int) -> np.ndarray:
    """Quantises to Q4_K and Q5_K: `d * sc * q - dmin * m` over groups of 32."""
    groups = blocks.reshape(-1, 8, 32)
    low = np.minimum(groups.min(axis=2), 0)
    step = (groups.max(axis=2) - low) / (2**bits - 1)
    d = (step.max(axis=1) / 63).astype(np.float16).astype(np.float32)
    dmin = (-low.min(axis=1) / 63).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(_ratio(step, d[:, None])), 0, 63).astype(np.uint8)
    minima = np.clip(np.rint(_ratio(-low, dmin[:, None])), 0, 63).astype(np.uint8)
    offset, width = dmin[:, None] * minima, d[:, None] * scales
    quants = np.clip(np.rint(_ratio(groups + offset[:, :, None], width[:, :, None])), 0, 2**bits - 1).astype(np.uint8)
    first = (scales[:, :4] & 63) | (scales[:, 4:] >> 4 << 6)
    second = (minima[:, :4] & 63) | (minima[:, 4:] >> 4 << 6)
    third = (scales[:, 4:] & 15) | (minima[:, 4:] & 15) << 4
    pairs = quants.reshape(-1, 4, 2, 32)
    nibbles = ((pairs[:, :, 0] & 15) | (pairs[:, :, 1] & 15) << 4).reshape(-1, 128)
    parts = [_halves(d), _halves(dmin), first, second, third]
    if bits == 5:
        run = np.arange(8, dtype=np.uint8)[None, :, None]
        parts.append(np.bitwise_or.reduce(quants >> 4 << run, axis=1))
    return np.concatenate([*parts, nibbles], axis=1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Quantises to Q6_K: `d * sc * (q - 32)` over groups of 16."""
    groups = blocks.reshape(-1, 16, 16)
    step = np.abs(groups).max(axis=2) / 31
    d = (step.max(axis=1) / 127).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(_ratio(step, d[:, None])), 0, 127).astype(np.uint8)
    quants = np.rint(_ratio(groups, (d[:, None] * scales)[:, :, None]))
    parts = (np.clip(quants, -32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    nibbles = ((parts[:, :, :2] & 15) | (parts[:, :, 2:] & 15) << 4).reshape(-1, 128)
    shift = np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None]
    pairs = np.bitwise_or.reduce(parts >> 4 << shift, axis=2).reshape(-1, 64)
    return np.concatenate([nibbles, pairs, scales, _halves(d)], axis=1)


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    """Quantises to Q3_K: `d * (sc - 32) * (q - 4)` over groups of 16."""
    groups = blocks.reshape(-1, 16, 16)
    step = np.abs(groups).max(axis=2) / 3.5
    d = (step.max(axis=1) / 31).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(_ratio(step, d[:, None])), 0, 31)
    quants = np.clip(np.rint(_ratio(groups, (d[:, None] * scales)[:, :, None])), -4, 3) + 4
    runs = quants.astype(np.uint8).reshape(-1, 8, 32)
    third = np.bitwise_or.reduce(runs >> 2 << np.arange(8, dtype=np.uint8)[None, :, None], axis=1)
    shift = np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None]
    pairs = np.bitwise_or.reduce((runs & 3).reshape(-1, 2, 4, 32) << shift, axis=2).reshape(-1, 64)
    numbers = (scales + 32).astype(np.uint8)
    low = (numbers[:, :8] & 15) | (numbers[:, 8:] & 15) << 4
    high = np.bitwise_or.reduce((numbers >> 4).reshape(-1, 4, 4) << shift[0], axis=1)
    return np.concatenate([third, pairs, low, high, _halves(d)], axis=1)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    """Quantises to Q2_K: `d * sc * q - dmin * m` over groups of 16."""
    groups = blocks.reshape(-1, 16, 16)
    low = np.minimum(groups.min(axis=2), 0)
    step = (groups.max(axis=2) - low) / 3
    d = (step.max(axis=1) / 15).astype(np.float16).astype(np.float32)
    dmin = (-low.min(axis=1) / 15).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(_ratio(step, d[:, None])), 0, 15).astype(np.uint8)
    minima = np.clip(np.rint(_ratio(-low, dmin[:, None])), 0, 15).astype(np.uint8)
    offset, width = dmin[:, None] * minima, d[:, None] * scales
    quants = np.clip(np.rint(_ratio(groups + offset[:, :, None], width[:, :, None])), 0, 3).astype(np.uint8)
    shift = np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None]
    pairs = np.bitwise_or.reduce(quants.reshape(-1, 2, 4, 32) << shift, axis=2).reshape(-1, 64)
    return np.concatenate([scales | minima << 4, pairs, _halves(d), _halves(dmin)], axis=1)


def _nearest_levels(groups: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Returns the nibbles [N, 16 bytes] of groups [N, 32] in steps [N]."""
    distance = np.abs(_ratio(groups, steps[:, None])[:, :, None] - IQ4_LEVELS)
    nearest = distance.argmin(axis=2).astype(np.uint8)
    return nearest[:, :16] | nearest[:, 16:] << 4


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    step = (np.abs(blocks).max(axis=1) / 113).astype(np.float16).astype(np.float32)
    return np.concatenate([_halves(step), _nearest_levels(blocks, step)], axis=1)


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """Quantises to IQ4_XS: `d * (sc - 32) * level` over groups of 32."""
    groups = blocks.reshape(-1, 8, 32)
    step = np.abs(groups).max(axis=2) / 113
    d = (step.max(axis=1) / 31).astype(np.float16).astype(np.float32)
    scales = np.clip(np.rint(_ratio(step, d[:, None])), 0, 31)
    nibbles = _nearest_levels(groups.reshape(-1, 32), (d[:, None] * scales).reshape(-1)).reshape(-1, 128)
    numbers = (scales + 32).astype(np.uint16)
    high = np.bitwise_or.reduce(numbers >> 4 << np.arange(0, 16, 2, dtype=np.uint16), axis=1)
    low = ((numbers[:, ::2] & 15) | (numbers[:, 1::2] & 15) << 4).astype(np.uint8)
    return np.concatenate([_halves(d), high.astype("<u2").reshape(-1, 1).view(np.uint8), low, nibbles], axis=1)


QUANTIZERS = {
    "Q2_K": _q2_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "Q3_K": _q3_k,
    "Q4_K": partial(_with_minima, bits=4),
    "Q5_K": partial(_with_minima, bits=5),
    "Q6_K": _q6_k,
}
