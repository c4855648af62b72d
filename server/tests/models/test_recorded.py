"""Compares the recorded results of transformers with the installed version; see `record.py`."""

from __future__ import annotations

import numpy as np
import pytest
from tests.models.ropes import ROPES
from tests.models.tiny import CASES, RECORDED
from tests.sampling import typical_cases

pytestmark = [pytest.mark.full, pytest.mark.filterwarnings("default")]
TOLERANCE = 1e-5


def test_configs_match_transformers() -> None:
    from tests.models.record import configs

    assert configs() == CASES


@pytest.mark.parametrize("case", CASES)
def test_logits_match_transformers(case: str) -> None:
    from tests.models.record import logits, prompts

    recorded, given = np.load(RECORDED / "logits.npz"), prompts()
    for name, values in given.items():
        np.testing.assert_array_equal(recorded[name], values)
    found, greedy = logits(case, **given)
    np.testing.assert_allclose(recorded[f"{case} logits"], found, rtol=0, atol=TOLERANCE)
    assert recorded[f"{case} greedy"].tolist() == greedy


@pytest.mark.parametrize("case", ROPES)
def test_frequencies_match_transformers(case: str) -> None:
    from tests.models.record import rope

    np.testing.assert_array_equal(np.load(RECORDED / "ropes.npz")[case], rope(case))


def test_typical_p_matches_transformers() -> None:
    from tests.models.record import typical

    recorded = np.load(RECORDED / "typical.npz")
    for seed in typical_cases.SEEDS:
        np.testing.assert_array_equal(recorded[str(seed)], typical(seed))


def test_the_embedded_model_matches_transformers() -> None:
    from tests.models.record import embedded

    recorded = np.load(RECORDED / "embedded.npz")
    found = embedded()
    np.testing.assert_array_equal(recorded["token_ids"], found["token_ids"])
    np.testing.assert_array_equal(recorded["likeliest"], found["likeliest"])
    np.testing.assert_allclose(recorded["logprobs"], found["logprobs"], rtol=0, atol=TOLERANCE)
