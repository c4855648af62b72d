"""The transformers backend computes what plain transformers does, whatever the architecture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests import running
from tests.transformers import tiny
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.transformers.backend import TransformersBackend
from trunkline_server.backends.transformers.trial import try_model

PROMPT = np.random.default_rng(7).integers(3, tiny.VOCAB_SIZE, 45).tolist()
NUM_TOKENS = 12


@pytest.mark.parametrize("case", tiny.CASES)
def test_greedy_tokens_and_logprobs_are_those_of_generate(case: str, tmp_path: Path) -> None:
    model = tiny.make(case)
    model.save_pretrained(tmp_path)
    with torch.inference_mode():
        expected = model.generate(
            torch.tensor([PROMPT]), max_new_tokens=NUM_TOKENS, min_new_tokens=NUM_TOKENS, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
    backend = TransformersBackend(tmp_path, max_batch_total_tokens=512)
    params = sampling_params(logprobs=True, min_tokens=NUM_TOKENS, end_token_ids=(2,))
    output = running.run_alone(backend, PROMPT, [17, 28], range(20, 10, -1), params, num_decodes=NUM_TOKENS - 1)
    tokens = [sampled.token_id for sampled in output]
    assert tokens == expected.sequences[0, len(PROMPT) :].tolist()
    assert len(set(tokens)) > 1, "a text of one token tests little"
    logprobs = [
        torch.log_softmax(row[0].float(), -1)[token] for row, token in zip(expected.logits, tokens, strict=True)
    ]
    np.testing.assert_allclose([sampled.logprob for sampled in output], logprobs, atol=1e-4)


@pytest.mark.parametrize(
    ("case", "is_packed"),
    [("gpt2", True), ("gemma2", True), ("opt", False), ("gpt_oss", False), ("diffllama", False)],
)
def test_rows_are_computed_together_where_the_model_allows_it(case: str, is_packed: bool) -> None:
    trial = try_model(tiny.make(case))
    assert trial.is_packed is is_packed
    assert is_packed == (trial.sizes[-1] > 1)
