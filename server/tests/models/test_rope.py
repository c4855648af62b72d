"""Rotary frequencies against transformers' own functions."""

from __future__ import annotations

import numpy as np
import pytest
import transformers
from tests.models.tiny import CASES
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.rope import rope

LLAMA_3_1 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
QWEN_YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 32_768}
SCALINGS = {
    "default": {"rope_type": "default", "rope_theta": 500_000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0},
    "llama3": LLAMA_3_1,
    "yarn": QWEN_YARN,
    "yarn with an attention factor": {**QWEN_YARN, "attention_factor": 1.25},
    "yarn with mscale": {**QWEN_YARN, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 16, "beta_slow": 2},
    "yarn without truncation": {**QWEN_YARN, "truncate": False},
}


@pytest.mark.parametrize("case", SCALINGS)
def test_frequencies_are_those_of_transformers(case: str) -> None:
    config = transformers.LlamaConfig(
        hidden_size=512, num_attention_heads=4, max_position_embeddings=131_072, rope_parameters=dict(SCALINGS[case])
    )
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    ours = rope(config_from_json("config.json", config.to_dict()))  # type: ignore[arg-type]
    assert ours.dim == 128
    np.testing.assert_allclose(ours.inv_freq, theirs.inv_freq.numpy(), rtol=4e-7)
    assert ours.attention_factor == pytest.approx(theirs.attention_scaling, rel=1e-12)


def test_older_spellings_mean_the_same() -> None:
    config = transformers.LlamaConfig(rope_parameters=dict(LLAMA_3_1), max_position_embeddings=131_072).to_dict()
    newer = rope(config_from_json("config.json", config))  # type: ignore[arg-type]
    scaling = dict(LLAMA_3_1)
    config["rope_theta"] = scaling.pop("rope_theta")
    del config["rope_parameters"]
    for kind in ("rope_type", "type"):
        older = {**config, "rope_scaling": {kind: "llama3", **{k: v for k, v in scaling.items() if k != "rope_type"}}}
        assert rope(config_from_json("config.json", older)) == newer  # type: ignore[arg-type]


def test_every_scaling_that_is_supported_is_compared() -> None:
    compared = {scaling["rope_type"] for scaling in SCALINGS.values()}
    assert compared == {"default", "linear", "llama3", "yarn"}
    assert compared - {"default"} <= ROPE_INIT_FUNCTIONS.keys()
    assert any("yarn" in case for case in CASES)
