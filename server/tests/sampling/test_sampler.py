"""Order and meaning of the sampling parameters, on distributions small enough to compute by hand."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from tests.models.tiny import RECORDED
from tests.plans import changed, new_biases
from tests.sampling.typical_cases import SEEDS, typical_case
from trunkline_server._proto.shard_pb2 import SamplingParams
from trunkline_server.backends.interface import sampling_params
from trunkline_server.sampling import processors
from trunkline_server.sampling.sampler import NotFiniteError, check_finite, choose_token, log_softmax, top_logprobs

PROBABILITIES = np.array([0.1, 0.4, 0.05, 0.3, 0.15])
LOGITS = np.log(PROBABILITIES).astype(np.float32)
SAMPLED = sampling_params(temperature=1.0, seed=99)


def choose(
    params: SamplingParams, logits: np.ndarray = LOGITS, prompt: tuple[int, ...] = (0,), output: tuple[int, ...] = ()
) -> int:
    return choose_token(np.asarray(logits, dtype=np.float32), [*prompt, *output], len(prompt), params)


def frequencies(params: SamplingParams, logits: np.ndarray = LOGITS, num_draws: int = 3000) -> dict[int, float]:
    """Returns how often each token is drawn over as many choices."""
    counts = Counter(choose(changed(params, choice=choice), logits) for choice in range(num_draws))
    return {token_id: count / num_draws for token_id, count in sorted(counts.items())}


def test_greedy_takes_the_largest_logit_and_breaks_ties_by_lower_id() -> None:
    assert choose(sampling_params()) == 1
    assert choose(sampling_params(), np.array([0.0, 2.0, 2.0, 1.0])) == 1


def test_sampling_follows_the_distribution() -> None:
    drawn = frequencies(SAMPLED)
    for token_id, probability in enumerate(PROBABILITIES):
        assert drawn[token_id] == pytest.approx(probability, abs=0.03)


def test_temperature_sharpens() -> None:
    drawn = frequencies(changed(SAMPLED, temperature=0.5))
    squared = PROBABILITIES**2 / (PROBABILITIES**2).sum()
    assert drawn[1] == pytest.approx(squared[1], abs=0.03)


def test_the_smallest_temperature_equals_greedy() -> None:
    assert frequencies(changed(SAMPLED, temperature=1e-38), num_draws=50) == {1: 1.0}


def test_top_k_keeps_the_likeliest_and_the_lower_id_of_a_tie() -> None:
    assert set(frequencies(changed(SAMPLED, top_k=2), num_draws=300)) == {1, 3}
    assert set(frequencies(changed(SAMPLED, top_k=2), np.array([1.0, 3.0, 1.0, 1.0]), 300)) == {0, 1}


@pytest.mark.parametrize(
    ("top_p", "kept"), [(1e-6, {1}), (0.39, {1}), (0.69, {1, 3}), (0.8, {1, 3, 4}), (0.999, {0, 1, 2, 3, 4})]
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, kept: set[int]) -> None:
    assert set(frequencies(changed(SAMPLED, top_p=top_p), num_draws=500)) == kept


def test_top_p_applies_to_what_top_k_kept() -> None:
    # 0.4 of the whole is 0.57 of the two that remain.
    assert set(frequencies(changed(SAMPLED, top_k=2, top_p=0.5), num_draws=300)) == {1}


def test_min_p_drops_tokens_unlikely_relative_to_the_likeliest() -> None:
    assert set(frequencies(changed(SAMPLED, min_p=0.3), num_draws=500)) == {1, 3, 4}
    assert set(frequencies(changed(SAMPLED, min_p=1.0), num_draws=100)) == {1}


def test_repetition_penalty_counts_prompt_and_output_once_and_respects_the_sign() -> None:
    logits = np.array([1.0, 1.5, -1.0, -1.2])
    assert choose(sampling_params(repetition_penalty=2.0), logits, prompt=(1, 1), output=()) == 0
    # Halved to 0.75 and 0.5, not quartered.
    assert choose(sampling_params(repetition_penalty=2.0), logits, prompt=(1, 1), output=(0, 1)) == 1
    # A negative logit is multiplied: -1.0 becomes -2.0, below -1.2.
    assert choose(sampling_params(repetition_penalty=2.0), np.array([-9.0, -9.0, -1.0, -1.2]), prompt=(2,)) == 3


def test_presence_penalty_counts_once_and_only_the_output() -> None:
    logits = np.array([2.0, 1.0, 0.5])
    assert choose(sampling_params(presence_penalty=1.4), logits, prompt=(0,), output=()) == 0
    assert choose(sampling_params(presence_penalty=1.4), logits, prompt=(1,), output=(0, 0)) == 1


def test_frequency_penalty_counts_each_occurrence() -> None:
    logits = np.array([2.0, 1.0, 0.5])
    params = sampling_params(frequency_penalty=0.6)
    assert choose(params, logits, prompt=(2,), output=(0,)) == 0
    assert choose(params, logits, prompt=(2,), output=(0, 0)) == 1


def test_min_tokens_holds_end_tokens_back_until_the_output_is_long_enough() -> None:
    params = sampling_params(min_tokens=2, end_token_ids=(1,))
    assert choose(params, prompt=(0, 0), output=()) == 3
    assert choose(params, prompt=(0,), output=(4,)) == 3
    assert choose(params, prompt=(0,), output=(4, 4)) == 1


def test_the_position_decides_and_the_history_does_not() -> None:
    drawn = [choose(SAMPLED, prompt=(0,) * length) for length in range(1, 40)]
    moved = [choose(SAMPLED, prompt=(0,), output=(2,) * (length - 1)) for length in range(1, 40)]
    assert drawn == moved
    assert len(set(drawn)) > 2


def test_logits_are_not_modified() -> None:
    logits = LOGITS.copy()
    choose(changed(SAMPLED, repetition_penalty=2.0, presence_penalty=1.0), logits, prompt=(0,), output=(1,))
    np.testing.assert_array_equal(logits, LOGITS)


@pytest.mark.parametrize("bad", [[math.nan, 1.0], [math.inf, 1.0], [-math.inf, -math.inf]])
def test_logits_without_a_distribution_are_refused(bad: list[float]) -> None:
    with pytest.raises(NotFiniteError):
        check_finite(np.array(bad, dtype=np.float32))


def test_a_single_finite_logit_is_a_distribution() -> None:
    logits = np.array([-math.inf, 3.0, -math.inf], dtype=np.float32)
    check_finite(logits)
    assert frequencies(SAMPLED, logits, 20) == {1: 1.0}


def test_min_tokens_that_leaves_no_token_is_refused() -> None:
    with pytest.raises(NotFiniteError):
        choose(sampling_params(min_tokens=1, end_token_ids=(0, 1)), np.array([1.0, 2.0]))


def test_logprobs_are_the_models_own_with_ties_by_lower_id() -> None:
    logprobs = log_softmax(LOGITS + 100)
    np.testing.assert_allclose(np.exp(logprobs), PROBABILITIES, atol=1e-5)
    likeliest = top_logprobs(log_softmax(np.array([1.0, 2.0, 1.0, 2.0], dtype=np.float32)), 3)
    assert [(top.token_id, top.logprob) for top in likeliest] == [
        (1, pytest.approx(-1.00641, abs=1e-4)),
        (3, pytest.approx(-1.00641, abs=1e-4)),
        (0, pytest.approx(-2.00641, abs=1e-4)),
    ]
    assert top_logprobs(logprobs, 0) == []


def test_bias_comes_before_penalties_and_the_mask_of_allowed_tokens_after_all() -> None:
    logits = np.array([-2.0, 0.5, 1.0, 3.0])
    # -2 + 6 is positive, so the penalty halves it: 2 is less than 3.
    params = sampling_params(logit_bias=new_biases((0, 6.0)), repetition_penalty=2.0)
    assert choose(params, logits, prompt=(0,)) == 3
    assert choose(changed(params, logit_bias=new_biases((0, 6.0), (0, 3.0))), logits, prompt=(0,)) == 0
    assert choose(sampling_params(logit_bias=new_biases((3, -100.0))), logits) == 2
    assert choose(sampling_params(allowed_tokens=b"\x03"), logits) == 1
    assert choose(sampling_params(allowed_tokens=b"\x03", logit_bias=new_biases((3, 100.0), (0, 3.0))), logits) == 0


def test_typical_p_drops_tokens_that_are_too_likely_or_too_unlikely() -> None:
    # Information 2.30, 0.92, 3.00, 1.20, 1.90 around an entropy of 1.39: nearest are 0.3, 0.4, 0.15.
    assert set(frequencies(changed(SAMPLED, typical_p=0.2), num_draws=300)) == {3}
    assert set(frequencies(changed(SAMPLED, typical_p=0.5), num_draws=300)) == {1, 3}
    assert set(frequencies(changed(SAMPLED, typical_p=0.8), num_draws=500)) == {1, 3, 4}
    # The two that top_k keeps have information 0.56 and 0.85 around 0.68, so the likelier one is nearer.
    assert set(frequencies(changed(SAMPLED, top_k=2, typical_p=0.1), num_draws=300)) == {1}
    assert choose(sampling_params(typical_p=0.2)) == 1, "greedy is greedy"


def test_top_n_sigma_keeps_what_is_near_the_largest_logit_at_any_temperature() -> None:
    # The logits are -2.30, -0.92, -3.00, -1.20 and -1.90; their standard deviation is 0.75.
    assert set(frequencies(changed(SAMPLED, top_n_sigma=0.5), num_draws=300)) == {1, 3}
    assert set(frequencies(changed(SAMPLED, top_n_sigma=0.5, temperature=5.0), num_draws=300)) == {1, 3}
    assert set(frequencies(changed(SAMPLED, top_n_sigma=1.5), num_draws=300)) == {1, 3, 4}
    # Excluded tokens do not count: those of 0, 1, 2 and 3 have a deviation of 0.82.
    assert set(frequencies(changed(SAMPLED, top_n_sigma=1.75, allowed_tokens=b"\x0f"), num_draws=300)) == {
        0,
        1,
        3,
    }
    assert choose(sampling_params(top_n_sigma=0.1)) == 1


def test_xtc_excludes_the_likeliest_tokens_but_the_last_above_the_threshold() -> None:
    always = changed(SAMPLED, xtc_probability=1.0)
    assert set(frequencies(changed(always, xtc_threshold=0.12), num_draws=300)) == {0, 2, 4}
    assert set(frequencies(changed(always, xtc_threshold=0.25), num_draws=300)) == {0, 2, 3, 4}
    assert set(frequencies(changed(always, xtc_threshold=0.35), num_draws=300)) == {0, 1, 2, 3, 4}
    # The shares count after the filters.
    assert set(frequencies(changed(always, xtc_threshold=0.42, top_k=2), num_draws=100)) == {3}
    drawn = frequencies(changed(always, xtc_probability=0.5, xtc_threshold=0.12))
    assert drawn[1] == pytest.approx(0.2, abs=0.03)
    assert choose(sampling_params(xtc_probability=1.0)) == 1, "greedy is greedy"


@pytest.mark.parametrize("seed", SEEDS)
def test_typical_p_keeps_the_same_tokens_as_transformers(seed: int) -> None:
    logits, mass = typical_case(seed)
    expected = np.load(RECORDED / "typical.npz")[str(seed)]
    probabilities = np.exp(logits.astype(np.float64) - logits.max())
    kept = processors.typical_p(probabilities, mass)
    # Sums in f32 may end one token earlier or later.
    assert np.count_nonzero(kept != expected) <= 1
    assert kept.any()
