"""Whole models from quantised checkpoints beside the reference with the weights that they encode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.cuda.test_backend import PROMPT, build_cuda
from tests.models.tiny import TinyModels
from tests.tiers import full
from tests.weights.gguf_files import write_model
from tests.weights.mxfp4_files import write_mxfp4
from tests.weights.quantized_files import write_dequantized, write_quantized
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint


def logprobs(checkpoint: Checkpoint, device: str | None) -> np.ndarray:
    """Returns log-probabilities of all tokens at all positions. device: None for the reference backend."""
    if device is None:
        logits = ReferenceBackend(checkpoint, max_batch_total_tokens=512, max_step_tokens=64).score(PROMPT[:8])
    else:
        logits = build_cuda(checkpoint, device, dtype=torch.float16).score(PROMPT[:8])
    return torch.log_softmax(torch.from_numpy(np.array(logits)).double(), -1).numpy()


@pytest.mark.parametrize(
    ("case", "bound"), [full("gptq_act_order", 0.005), ("fp8_dynamic", 0.1), full("fp8_blocks", 0.005)]
)
def test_a_quantised_checkpoint_equals_its_encoded_model(
    case: str, bound: float, device: str, tiny_model: TinyModels, tmp_path: Path
) -> None:
    model = tiny_model("llama2").folder
    meant = write_quantized(model, tmp_path / "quantized", case)
    expected = logprobs(open_checkpoint(write_dequantized(model, tmp_path / "dequantized", meant)), None)
    found = logprobs(open_checkpoint(tmp_path / "quantized"), device)
    # Activations are f16, or have 8 bits.
    assert np.abs(found - expected).mean() < bound
    # The unquantised model is a different one.
    unquantized = logprobs(open_checkpoint(model), None)
    assert np.abs(unquantized - expected).mean() > np.abs(found - expected).mean()


@pytest.mark.parametrize("is_gguf", [False, True])
def test_experts_in_mxfp4_become_dense(is_gguf: bool, device: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    if is_gguf:
        path = write_model(model, tmp_path / "m.gguf", "MXFP4", is_quantized=lambda name: ".experts." in name)
    else:
        path = write_mxfp4(model, tmp_path)
    checkpoint, tokens = open_checkpoint(path), PROMPT[:8]
    expected = ReferenceBackend(checkpoint, max_batch_total_tokens=512, max_step_tokens=64).score(tokens)
    np.testing.assert_allclose(build_cuda(checkpoint, device).score(tokens), expected, atol=2e-4)


def test_a_gguf_file_equals_its_encoded_model(device: str, tiny_model: TinyModels, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_model(tiny_model("llama2"), tmp_path / "m.gguf", "Q4_1"))
    assert np.abs(logprobs(checkpoint, device) - logprobs(checkpoint, None)).mean() < 0.005
