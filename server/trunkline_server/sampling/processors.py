"""The effects of sampling parameters on logits and candidates, one function each, in the order of application."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server.sampling.watermark import is_green

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trunkline_server._proto.shard_pb2 import TokenBias, Watermark

    Floats = NDArray[np.float32]


def lift_green(logits: Floats, previous: int, watermark: Watermark) -> None:
    """Adds `delta` to the logits of the tokens that are green after `previous`, in place."""
    token_ids = np.arange(logits.shape[0], dtype=np.int64)
    green = is_green(np.array(previous, dtype=np.int64), token_ids, watermark.gamma, watermark.key)
    logits[green] += np.float32(watermark.delta)


def add_bias(logits: Floats, biases: Iterable[TokenBias]) -> None:
    """Adds biases to the logits of their tokens, in place and one after the other."""
    for bias in biases:
        logits[bias.token_id] += np.float32(bias.bias)


def repetition_penalty(logits: Floats, token_ids: Sequence[int], penalty: float) -> None:
    """Divides positive and multiplies negative logits of the tokens in `token_ids`, each once, in place."""
    if penalty == 1.0:
        return
    unique_ids = np.unique(np.asarray(token_ids, dtype=np.int64))
    factor = np.float32(penalty)
    logits[unique_ids] = np.where(logits[unique_ids] > 0, logits[unique_ids] / factor, logits[unique_ids] * factor)


def occurrence_penalties(logits: Floats, output_ids: Sequence[int], presence: float, frequency: float) -> None:
    """Subtracts `presence` once and `frequency` for each occurrence in the output, in place."""
    if (presence == 0.0 and frequency == 0.0) or len(output_ids) == 0:
        return
    unique_ids, counts = np.unique(np.asarray(output_ids, dtype=np.int64), return_counts=True)
    logits[unique_ids] -= counts.astype(np.float32) * np.float32(frequency) + np.float32(presence)


def mask_end_tokens(logits: Floats, end_token_ids: Sequence[int], num_output: int, min_tokens: int) -> None:
    """Excludes end tokens while the output is shorter than `min_tokens`, in place."""
    if num_output < min_tokens and end_token_ids:
        logits[np.asarray(end_token_ids, dtype=np.int64)] = -np.inf


def keep_allowed(logits: Floats, allowed: bytes) -> None:
    """Keeps only the tokens whose bit is set (bit i % 8 of byte i / 8 is token i), in place. Empty keeps all."""
    if allowed:
        bits = np.unpackbits(np.frombuffer(allowed, dtype=np.uint8), bitorder="little", count=logits.shape[0])
        logits[bits == 0] = -np.inf


def top_n_sigma(logits: Floats, width: float) -> None:
    """Keeps only logits at most `width` standard deviations below the largest, in place; 0 keeps all.

    Tang et al., "Top-n-sigma", arXiv:2411.07641. Excluded tokens (-inf) do not count.
    """
    if width > 0.0:
        sigma = np.std(logits[np.isfinite(logits)].astype(np.float64))
        logits[logits < float(np.max(logits)) - float(np.float32(width)) * sigma] = -np.inf


def top_k(order: NDArray[np.int64], k: int) -> NDArray[np.int64]:
    """Returns the first `k` token ids, which are in order of probability; 0 keeps all."""
    return order if k == 0 else order[:k]


def top_p(probabilities: NDArray[np.float64], p: float) -> int:
    """Returns how many of the leading probabilities (descending, summing to 1) reach `p`; at least one."""
    if p >= 1.0:
        return int(probabilities.shape[0])
    before = np.cumsum(probabilities) - probabilities
    return max(1, int(np.count_nonzero(before < p)))


def min_p(probabilities: NDArray[np.float64], p: float) -> int:
    """Returns how many of the leading probabilities (descending) are at least `p` times the first."""
    return int(np.count_nonzero(probabilities >= p * probabilities[0]))


def typical_p(probabilities: NDArray[np.float64], p: float) -> NDArray[np.bool_]:
    """Selects the probabilities (any sum) whose information is nearest to the mean, until they reach `p` of the sum.

    Meister et al., "Locally Typical Sampling", TACL 2023, doi:10.1162/tacl_a_00536. Ties with the last one are selected
    too. Probabilities of 0 carry no information and are not selected.
    """
    probabilities = probabilities / np.sum(probabilities)
    if p >= 1.0:
        return np.ones(probabilities.shape[0], dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        information = -np.log(probabilities)
        entropy = np.nansum(probabilities * information)
    distances = np.abs(information - entropy)
    order = np.argsort(distances, kind="stable")
    last = min(int(np.count_nonzero(np.cumsum(probabilities[order]) < p)), order.shape[0] - 1)
    kept: NDArray[np.bool_] = (distances <= distances[order[last]]) & (probabilities > 0)
    return kept


def xtc(weights: NDArray[np.float64], threshold: float) -> int:
    """Returns how many of the leading weights (descending, any sum) XTC excludes: all whose share is at least
    `threshold`, but the last of them.

    "Exclude Top Choices": the likeliest tokens give way if there are other good ones.
    """
    num_above = int(np.count_nonzero((weights >= threshold * np.sum(weights)) & (weights > 0.0)))
    return max(num_above - 1, 0)
