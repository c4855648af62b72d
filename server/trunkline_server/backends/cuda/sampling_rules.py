"""Keeps what a sequence's sampling parameters require in each step as arrays that are ready to copy to the device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server._proto.shard_pb2 import SamplingParams, TokenBias, Watermark
from trunkline_server.backends.cuda.kernels.logit_edits import FORBIDDEN, SEEN
from trunkline_server.sampling.masks import num_mask_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]
    Floats = NDArray[np.float32]
    Words = NDArray[np.uint32]

_MIN_CAPACITY = 64


class SamplingRules:
    """The rules of one sequence. `count` costs O(1). Returned arrays are views; copy them before the next `count`.

    bias_tokens, bias_rounds: i32, bias_values: f32; no token occurs twice in a round. allowed: `allowed_tokens` as u32
    words; None if all are allowed. What every step reads is kept apart from the message, whose fields take longer to
    read. reals: in the columns of draw_range.py; has_filters, has_rare: whether a filter is set, and a rare one.
    """

    def __init__(
        self, params: SamplingParams, token_ids: Sequence[int], num_prompt_tokens: int, vocab_size: int
    ) -> None:
        p = params
        self.temperature, self.top_n_sigma = p.temperature, p.top_n_sigma
        self.reals = (p.temperature, p.top_p, p.min_p, p.typical_p, p.xtc_probability, p.xtc_threshold)
        self.top_k, self.seed, self.choice = p.top_k, p.seed, p.choice
        self.has_rare = p.typical_p < 1.0 or p.xtc_probability > 0.0
        self.has_filters = self.has_rare or p.top_k > 0 or p.top_p < 1.0 or p.min_p > 0.0
        self.repetition, self.presence, self.frequency = p.repetition_penalty, p.presence_penalty, p.frequency_penalty
        self.watermark: Watermark | None = p.watermark if p.HasField("watermark") else None
        self.num_top_prompt_logprobs = p.num_top_prompt_logprobs
        self.num_top_logprobs, self.wants_logprob = p.num_top_logprobs, p.logprobs
        self._min_tokens = p.min_tokens
        self._num_prompt_tokens = num_prompt_tokens
        self._has_repetition = self.repetition != 1.0
        self._has_penalties = self.presence != 0.0 or self.frequency != 0.0
        self._holds_back_end_tokens = p.min_tokens > 0 and len(p.end_token_ids) > 0
        self.bias_tokens, self.bias_values, self.bias_rounds = _biases(p.logit_bias)
        self.num_bias_rounds = int(self.bias_rounds[-1]) + 1 if len(self.bias_rounds) else 0
        self.allowed = mask_from_bytes(p.allowed_tokens, vocab_size) if p.allowed_tokens else None
        self._num_seen = 0
        self._places: dict[int, int] = {}
        self._num_listed = 0
        self._tokens, self._counts, self._flags = (np.zeros(_MIN_CAPACITY, dtype=np.int32) for _ in range(3))
        self._end_places: Ints = np.zeros(0, dtype=np.int32)
        if self._holds_back_end_tokens:
            self._end_places = np.array([self._place(token) for token in set(p.end_token_ids)], dtype=np.int32)
        for token_id in token_ids:
            self.count(token_id)

    @property
    def has_penalties(self) -> bool:
        """True if a token's logit depends on the tokens before it, so that a pending token counts too."""
        return self._has_repetition or self._has_penalties

    def count(self, token_id: int) -> None:
        """Adds the next token, beginning with those of the prompt."""
        is_output = self._num_seen >= self._num_prompt_tokens
        self._num_seen += 1
        if not (self._has_repetition or (is_output and self._has_penalties)):
            return
        place = self._place(token_id)
        self._flags[place] = SEEN
        self._counts[place] += is_output

    def edits(self, num_output: int, drafts: Sequence[int] = ()) -> tuple[Ints, Ints, Ints]:
        """Returns tokens, counts and flags for a sample after `num_output` output tokens, pending ones and drafts
        included. drafts: the newest of them, which `count` does not know. Costs O(listed tokens) if there are any.
        """
        places = [self._place(draft) for draft in drafts] if self.has_penalties else []
        size = self._num_listed
        counts, flags = self._counts[:size], self._flags[:size]
        if places:
            counts, flags = counts.copy(), flags.copy()
            np.add.at(counts, places, 1)
            flags[places] |= SEEN
        if self._holds_back_end_tokens:
            if num_output < self._min_tokens:
                flags = flags.copy()
                flags[self._end_places] |= FORBIDDEN
            elif not self.has_penalties:
                size = 0
        return self._tokens[:size], counts[:size], flags[:size]

    def _place(self, token_id: int) -> int:
        place = self._places.get(token_id)
        if place is None:
            place = self._places[token_id] = self._num_listed
            if place == len(self._tokens):
                self._tokens, self._counts, self._flags = (
                    np.concatenate([array, np.zeros_like(array)]) for array in (self._tokens, self._counts, self._flags)
                )
            self._tokens[place] = token_id
            self._num_listed += 1
        return place


def mask_words(vocab_size: int) -> int:
    """Returns the number of 32-bit words in a mask of tokens."""
    return -(-vocab_size // 32)


def mask_from_bytes(mask: bytes, vocab_size: int) -> Words:
    """Returns the bits of a mask as words; bits beyond them are 0."""
    words = np.zeros(mask_words(vocab_size), dtype=np.uint32)
    num_bytes = num_mask_bytes(vocab_size)
    words.view(np.uint8)[:num_bytes] = np.frombuffer(mask, dtype=np.uint8, count=num_bytes)
    return words


def _biases(biases: Iterable[TokenBias]) -> tuple[Ints, Floats, Ints]:
    """Returns tokens, values and rounds of biases, sorted by round. A token's n-th bias is in round n, from 0."""
    occurrences: dict[int, int] = {}
    rows = []
    for bias in biases:
        number = occurrences[bias.token_id] = occurrences.get(bias.token_id, -1) + 1
        rows.append((number, bias.token_id, bias.bias))
    rows.sort(key=lambda row: row[0])
    return (
        np.array([token_id for _, token_id, _ in rows], dtype=np.int32),
        np.array([value for _, _, value in rows], dtype=np.float32),
        np.array([number for number, _, _ in rows], dtype=np.int32),
    )
