"""Every weight format on every instruction set: near transformers with the same weights, and equal to the bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from tests.models.tiny import make
from tests.weights.gguf_files import quantize, write_model
from trunkline_server import _kernels
from trunkline_server.backends.cpu.build import build
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.tensor import FORMATS

ISAS = ("scalar", "avx2", "avx_vnni", "avx512", "amx", "neon", "neon_i8mm")
NUM_TOKENS = 200
# Mean absolute difference of the log-probabilities of all tokens at all positions. Activations are 8-bit numbers beside
# integer weights; beside floats only K and V are rounded.
FLOAT_BOUND = 0.01
INT_BOUND = 0.02


def log_softmax(logits: np.ndarray) -> np.ndarray:
    return torch.log_softmax(torch.from_numpy(logits.astype(np.float64)), dim=-1).numpy()


def dequantized(model: transformers.PreTrainedModel, format_name: str) -> transformers.PreTrainedModel:
    """The model with each matrix as the `gguf` package reads it back from the format."""
    stored_as = gguf.GGMLQuantizationType[format_name]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                raw = quantize(parameter.numpy(), format_name)
                values = gguf.dequantize(raw, stored_as).astype(np.float32)
                # A quantiser that is broken would leave nothing to be near to.
                assert np.abs(values - parameter.numpy()).max() < 0.15 * parameter.abs().max().item()
                parameter.copy_(torch.from_numpy(values.copy()))
    return model


@pytest.mark.parametrize("format_name", FORMATS)
def test_logprobs_of_a_format(format_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama_wide")
    checkpoint = open_checkpoint(write_model(model, tmp_path / "m.gguf", format_name))
    ids = np.random.default_rng(17).integers(0, model.config.vocab_size, NUM_TOKENS).tolist()
    with torch.inference_mode():
        expected = log_softmax(dequantized(model, format_name)(torch.tensor([ids])).logits[0].numpy())
    results: dict[str, np.ndarray] = {}
    best = _kernels.isa()
    for isa in ISAS:
        monkeypatch.setenv("TRUNKLINE_ISA", isa)
        try:
            _kernels.isa()
        except ValueError as error:
            print(f"not tested: {error}")
            continue
        # K and V in f16: the error is to be the weights' own.
        options = {"threads": 1, "max_batch_total_tokens": 256, "block_size": 16, "max_step_tokens": 64}
        backend = build(checkpoint, kv_cache_dtype="f16", **options)
        results[isa] = backend.score(ids)
        difference = np.abs(log_softmax(results[isa]) - expected).mean()
        print(f"{format_name} {isa}: mean |Δ logprob| {difference:.5f}")
        assert difference < (FLOAT_BOUND if format_name in ("F32", "F16", "BF16") else INT_BOUND)
    assert best in results, f"instruction set {best} is not in `ISAS`"
    assert len({result.tobytes() for result in results.values()}) == 1, f"bits differ among {list(results)}"
