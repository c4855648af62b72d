"""Chooses a token from logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server._proto.shard_pb2 import SamplingParams, TokenLogprob
from trunkline_server.sampling import processors
from trunkline_server.sampling.masks import penalties_of
from trunkline_server.sampling.philox import uniforms

if TYPE_CHECKING:
    from numpy.typing import NDArray


class NotFiniteError(ValueError):
    """A logit is NaN or positive infinity, or no logit is finite, so there is no distribution to sample from."""

    def __init__(self, *, is_nan: bool) -> None:
        super().__init__("a logit is not a number" if is_nan else "the largest logit is infinite")


def check_finite(logits: NDArray[np.float32]) -> None:
    """Raises NotFiniteError unless the logits [V] define a distribution."""
    largest = np.max(logits)  # NaN if any logit is NaN
    if not np.isfinite(largest):
        raise NotFiniteError(is_nan=bool(np.isnan(largest)))


def choose_token(
    logits: NDArray[np.float32],
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    params: SamplingParams,
    allowed_tokens: bytes = b"",
) -> int:
    """Returns the token that follows `token_ids` (prompt and output), chosen by `params` and the generator of
    `philox.py`.

    logits: [V], finite as `check_finite` requires, not modified. Cost: O(V log V), or O(V) when greedy. allowed_tokens:
    a mask as in shard.proto, of the right size. Raises NotFiniteError if no token is left.
    """
    logits = logits.astype(np.float32, copy=True)
    output_ids = token_ids[num_prompt_tokens:]
    if params.HasField("watermark"):
        processors.lift_green(logits, token_ids[-1], params.watermark)
    processors.add_bias(logits, params.logit_bias)
    for token_id, addend in zip(*penalties_of(allowed_tokens, logits.shape[0]), strict=True):
        logits[token_id] += addend
    processors.repetition_penalty(logits, token_ids, params.repetition_penalty)
    processors.occurrence_penalties(logits, output_ids, params.presence_penalty, params.frequency_penalty)
    processors.mask_end_tokens(logits, params.end_token_ids, len(output_ids), params.min_tokens)
    processors.keep_allowed(logits, allowed_tokens)
    processors.keep_allowed(logits, params.allowed_tokens)
    check_finite(logits)
    if params.temperature == 0.0:
        return int(np.argmax(logits))
    processors.top_n_sigma(logits, params.top_n_sigma)
    # Shifted first, so that even at the smallest temperature the likeliest token stays at 0 instead of becoming
    # infinite.
    with np.errstate(over="ignore"):
        logits = (logits - np.max(logits)) / np.float32(params.temperature)
    order = processors.top_k(np.argsort(-logits, kind="stable"), params.top_k)
    probabilities = _softmax(logits[order])
    num_kept = processors.top_p(probabilities, params.top_p)
    num_kept = min(num_kept, processors.min_p(probabilities, params.min_p))
    is_kept = processors.typical_p(probabilities[:num_kept], params.typical_p)
    order, probabilities = order[:num_kept][is_kept], probabilities[:num_kept][is_kept]
    draw, xtc_draw = uniforms(params.seed, params.choice, len(token_ids))
    if xtc_draw < params.xtc_probability:
        num_excluded = processors.xtc(probabilities, params.xtc_threshold)
        order, probabilities = order[num_excluded:], probabilities[num_excluded:]
    cumulative = np.cumsum(probabilities)
    return int(order[np.searchsorted(cumulative, draw * cumulative[-1], side="right")])


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the natural logarithms of the model's own distribution, [V] f32, summed in f64."""
    shifted = logits.astype(np.float64) - np.max(logits)
    result: NDArray[np.float32] = (shifted - np.log(np.sum(np.exp(shifted)))).astype(np.float32)
    return result


def top_logprobs(logprobs: NDArray[np.float32], count: int) -> list[TokenLogprob]:
    """Returns the `count` likeliest tokens, ties by lower id."""
    if count == 0:
        return []
    likeliest = np.argsort(-logprobs, kind="stable")[:count]
    return [TokenLogprob(token_id=int(token_id), logprob=float(logprobs[token_id])) for token_id in likeliest]


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Returns the probabilities of logits in descending order."""
    weights = np.exp(logits.astype(np.float64) - np.float64(logits[0]))
    probabilities: NDArray[np.float64] = weights / np.sum(weights)
    return probabilities
