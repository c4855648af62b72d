"""The watermark: green tokens, their effect on a choice, and detection."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from tests.plans import changed, new_biases
from tests.tiers import IS_FULL
from trunkline_server._proto.shard_pb2 import SamplingParams, Watermark
from trunkline_server.backends.interface import sampling_params
from trunkline_server.sampling.philox import philox_4x32_10
from trunkline_server.sampling.sampler import choose_token
from trunkline_server.sampling.watermark import DEFAULT_KEY, MIN_SCORED, detect, is_green

MARK = Watermark(gamma=0.5, delta=2.0, key=DEFAULT_KEY)


def generate(params: SamplingParams, num_tokens: int, *, seed: int, vocab_size: int = 500) -> list[int]:
    """Draws tokens from random logits, after a prompt of one token."""
    rng = np.random.default_rng(seed)
    token_ids = [int(rng.integers(vocab_size))]
    for _ in range(num_tokens):
        logits = (2 * rng.standard_normal(vocab_size)).astype(np.float32)
        token_ids.append(choose_token(logits, token_ids, 1, params))
    return token_ids


def test_a_token_is_green_by_its_word_of_philox() -> None:
    rng = np.random.default_rng(1)
    for gamma in (2.0**-8, 0.25, 0.7):
        key = int(rng.integers(0, 2**63)) * 2 + 1
        previous, token_ids = rng.integers(0, 2**32, 300), rng.integers(0, 2**32, 300)
        for before, token_id, green in zip(
            previous.tolist(), token_ids.tolist(), is_green(previous, token_ids, gamma, key), strict=True
        ):
            words = philox_4x32_10((before, token_id // 4, 1, 0), (key & 0xFFFFFFFF, key >> 32))
            assert green == (words[token_id % 4] < float(np.float32(gamma)) * 2**32)


def test_the_list_is_that_of_the_kernels() -> None:
    # The same numbers are in kernels/src/sampling/watermark.rs.
    green = is_green(np.array(7), np.arange(40), 0.25, 0x0123_4567_89AB_CDEF)
    assert np.flatnonzero(green).tolist() == [15, 19, 20, 32]


def test_green_tokens_are_lifted_before_all_else() -> None:
    last = 49
    green = np.flatnonzero(is_green(np.array(last), np.arange(50), MARK.gamma, MARK.key))
    red = next(token for token in range(last) if token not in green)
    first, second = (int(token) for token in green[:2])
    logits = np.full(50, -5.0, dtype=np.float32)
    logits[[red, first, second]] = 1.2, 0.0, -0.9
    marked = sampling_params(watermark=MARK)
    assert choose_token(logits, [last], 1, sampling_params()) == red
    assert choose_token(logits, [last], 1, marked) == first
    # The red token is lifted to 2 and then halved; if halved first, it would be 2 and the largest.
    assert choose_token(logits, [first, last], 2, changed(marked, repetition_penalty=2.0)) == red
    assert choose_token(logits, [red, first, last], 3, changed(marked, repetition_penalty=2.0)) == second
    assert choose_token(logits, [last], 1, changed(marked, logit_bias=new_biases((first, -2.1)))) == red
    only_second = (1 << second).to_bytes(7, "little")
    assert choose_token(logits, [last], 1, changed(marked, allowed_tokens=only_second)) == second


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_a_watermarked_text_is_detected(temperature: float) -> None:
    marked = sampling_params(temperature=temperature, seed=4, watermark=MARK)
    for seed in range(20 if IS_FULL else 4):
        text = generate(marked, 200, seed=seed)
        assert detect(text).z > 4, f"seed {seed}"
        assert abs(detect(text, key=DEFAULT_KEY + 1).z) < 4, f"another key, seed {seed}"
        assert abs(detect(generate(changed(marked, watermark=None), 200, seed=seed)).z) < 4, f"seed {seed}"


def test_a_score_counts_each_pair_once() -> None:
    text = generate(sampling_params(temperature=1.0, watermark=MARK), 60, seed=1)
    once = detect(text)
    assert once.num_scored == len(set(pairwise(text)))
    assert once.z == pytest.approx((once.num_green - once.num_scored / 2) / math.sqrt(once.num_scored / 4))
    assert once.p == pytest.approx(0.5 * math.erfc(once.z / math.sqrt(2)))
    again = detect(text + text)
    assert once.num_scored <= again.num_scored <= once.num_scored + 1


def test_a_short_text_is_refused() -> None:
    with pytest.raises(ValueError, match=f"300 tokens with 2 different pairs, at least {MIN_SCORED} are needed"):
        detect([1, 2] * 150)
    with pytest.raises(ValueError, match="1 tokens with 0 different pairs"):
        detect([1])
    assert detect(list(range(MIN_SCORED + 1))).num_scored == MIN_SCORED
