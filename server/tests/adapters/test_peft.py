"""Adapters that PEFT writes: logprobs against those of PEFT's own model."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.adapters.test_backends import NUM_SLOTS, PROMPT, put, reference, run
from tests.adapters.test_merged import MAX_RANK
from tests.cpu.tiny_backend import build_tiny, log_softmax
from tests.models.tiny import TinyModels
from trunkline_server.weights.checkpoint import open_checkpoint

torch = pytest.importorskip("torch")
# PEFT uses names that transformers will remove.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "patterns": {
        "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp\.down_proj": 7},
        "alpha_pattern": {"q_proj": 5, r"layers\.[01]\.self_attn\.v_proj": 3},
    },
}


def logprobs_of_peft(base: Path, folder: Path, **options: Any) -> np.ndarray[Any, Any]:
    """Writes a random adapter of all linear weights; returns the logprobs after the prompt."""
    # They import Triton, which tests of the `cuda` backend must do first.
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **options)
    adapted = peft.get_peft_model(model, config).eval()
    with torch.inference_mode():
        for name, parameter in adapted.named_parameters():
            if "lora_magnitude" in name:
                parameter *= 1 + 0.3 * torch.randn_like(parameter)
            elif "lora_" in name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
        logits = adapted(torch.tensor([PROMPT])).logits[0, -1]
    adapted.save_pretrained(folder)
    return log_softmax(logits.numpy())


@pytest.mark.parametrize(
    ("case", "options"),
    [
        *[pytest.param("llama3", options, id=name) for name, options in CONFIGS.items()],
        # Biases; joined rows; heads whose rows neighbour their pairs.
        *[pytest.param(case, {"use_dora": True}, id=f"dora-{case}") for case in ("llama3", "qwen2", "phi3", "glm")],
    ],
)
def test_an_adapter_computes_as_with_peft(
    case: str, options: dict[str, Any], tiny_model: TinyModels, tmp_path: Path
) -> None:
    base = tiny_model(case).folder
    expected = logprobs_of_peft(base, tmp_path, **options)
    checkpoint = open_checkpoint(base)
    # The cpu backend rounds K and V.
    for build, atol in ((reference, 1e-4), (partial(build_tiny, kv_cache_dtype="f16"), 2e-3)):
        backend = build(checkpoint, max_loras=NUM_SLOTS, max_lora_rank=MAX_RANK)
        plain = run(backend, 0)[0].top_logprobs
        assert max(abs(top.logprob - expected[top.token_id]) for top in plain) > 0.05
        put(backend, 1, tmp_path, checkpoint)
        found = run(backend, 1)[0].top_logprobs
        wanted = expected[[top.token_id for top in found]]
        np.testing.assert_allclose([top.logprob for top in found], wanted, rtol=0, atol=atol)
