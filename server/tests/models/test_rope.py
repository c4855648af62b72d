"""Rotary frequencies against the results of transformers' own functions (see `record.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.models.ropes import ROPES, llama
from tests.models.tiny import CASES, RECORDED
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.rope import Rope, rope


def rope_of(config: dict[str, Any]) -> Rope:
    return rope(config_from_json(Path("config.json"), config))


@pytest.mark.parametrize("case", ROPES)
def test_frequencies_match_transformers(case: str) -> None:
    *inv_freq, attention_factor = np.load(RECORDED / "ropes.npz")[case]
    ours = rope_of(llama(ROPES[case]))
    assert ours.dim == 128
    np.testing.assert_allclose(ours.inv_freq, inv_freq, rtol=4e-7)
    assert ours.attention_factor == pytest.approx(attention_factor, rel=1e-12)


def test_older_spellings_have_the_same_meaning() -> None:
    newer = rope_of(llama(ROPES["llama3"]))
    scaling = dict(ROPES["llama3"])
    config = llama({}) | {"rope_theta": scaling.pop("rope_theta")}
    del config["rope_parameters"]
    for kind in ("rope_type", "type"):
        older = {**config, "rope_scaling": {kind: "llama3", **{k: v for k, v in scaling.items() if k != "rope_type"}}}
        assert rope_of(older) == newer


def test_every_supported_scaling_is_compared() -> None:
    assert {scaling["rope_type"] for scaling in ROPES.values()} == {"default", "linear", "llama3", "yarn"}
    assert any("yarn" in case for case in CASES)
