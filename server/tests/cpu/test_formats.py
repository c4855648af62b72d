"""Every weight format on every instruction set: close to the reference with the same weights, and equal bit for bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.cpu.tiny_backend import log_softmax
from tests.models.tiny import VOCAB_SIZE, TinyModel, TinyModels
from tests.tiers import first
from tests.weights.gguf_files import quantize, write_model
from tests.weights.mxfp4_files import write_mxfp4
from tests.weights.quantized_files import write_quantized
from trunkline_server import _kernels
from trunkline_server.backends.cpu.build import build
from trunkline_server.backends.cpu.memory import memory_need
from trunkline_server.backends.cpu.memory_plan import step_limits
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import UNPACKED_FORMATS
from trunkline_server.weights.tensor import FORMATS

ISAS = ("scalar", "avx2", "avx_vnni", "avx512", "avx512_bf16", "amx", "neon", "neon_i8mm")
NUM_TOKENS = 200
# Mean absolute difference of the log-probabilities of all tokens at all positions. With integer weights, activations
# are 8-bit numbers; with F32 and F16, only K and V are rounded. The largest measured are 0.00038 and 0.0161.
FLOAT_BOUND = 0.0006
INT_BOUND = 0.02
# Activations are rounded to bfloat16, too. The measured difference is 0.0052.
BF16_BOUND = 0.007
# A row that is rounded may use another expert. The largest measured is 0.0294.
EXPERTS_BOUND = 0.04


def dequantized(model: TinyModel, format_name: str) -> TinyModel:
    """Returns the model with each matrix as the `gguf` package reads it back from the format."""
    stored_as = gguf.GGMLQuantizationType[format_name]
    found = TinyModel(model.case)
    for name, weight in model.weights.items():
        # Routers are not quantised.
        if weight.ndim == 2 and not name.endswith("mlp.gate.weight"):
            values = gguf.dequantize(quantize(weight, format_name), stored_as).astype(np.float32)
            # A broken quantiser would leave nothing to compare with.
            assert np.abs(values - weight).max() < 0.3 * np.abs(weight).max()
            found.weights[name] = values
    return found


# Formats of fewer bits leave nothing to compare; the kernels' own tests cover their layouts.
TESTED = [name for name in FORMATS if name == "Q2_K" or name not in UNPACKED_FORMATS]


@pytest.mark.parametrize("format_name", first(TESTED, "BF16", "Q4_1", "Q8_0", "Q6_K", "IQ4_XS", "Q2_K"))
def test_logprobs_of_a_format(
    format_name: str, tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = {"F32": FLOAT_BOUND, "F16": FLOAT_BOUND, "BF16": BF16_BOUND}.get(format_name, INT_BOUND)
    check_logprobs(tiny_model("llama_wide"), format_name, bound, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("case", "format_name"),
    [
        ("qwen3_moe", "Q8_0"),
        ("qwen2_moe", "Q4_1"),
        ("mixtral", "F16"),
        ("deepseek_v2", "Q8_0"),
        ("deepseek_v2", "BF16"),
        ("gpt_oss", "MXFP4"),
    ],
)
def test_logprobs_of_experts(
    case: str, format_name: str, tiny_model: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = FLOAT_BOUND if format_name == "F16" else EXPERTS_BOUND
    check_logprobs(tiny_model(case), format_name, bound, tmp_path, monkeypatch)


def check_logprobs(
    model: TinyModel, format_name: str, bound: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares the model from a GGUF file, on each instruction set, with the reference on dequantised weights."""
    checkpoint = open_checkpoint(write_model(model, tmp_path / "m.gguf", format_name))
    ids = np.random.default_rng(17).integers(0, VOCAB_SIZE, NUM_TOKENS).tolist()
    reference = ReferenceBackend(open_checkpoint(dequantized(model, format_name).save(tmp_path / "dequantized")))
    expected = log_softmax(reference.score(ids))
    results: dict[str, np.ndarray] = {}
    best = _kernels.isa()
    for isa in ISAS:
        monkeypatch.setenv("TRUNKLINE_ISA", isa)
        try:
            _kernels.isa()
        except ValueError as error:
            print(f"not tested: {error}")
            continue
        # K and V in f16, so that the error is that of the weights.
        options = {"threads": 1, "max_batch_total_tokens": 256, "block_size": 16, "max_step_tokens": 64}
        backend = build(checkpoint, kv_cache_dtype="f16", **options)
        results[isa] = backend.score(ids)
        difference = np.abs(log_softmax(results[isa]) - expected).mean()
        print(f"{format_name} {isa}: mean |Δ logprob| {difference:.5f}")
        assert difference < bound
    assert best in results, f"instruction set {best} is not in `ISAS`"
    assert len({result.tobytes() for result in results.values()}) == 1, f"bits differ among {list(results)}"


def test_experts_in_mxfp4_have_the_bits_of_gguf(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("gpt_oss")
    ids = np.random.default_rng(17).integers(0, VOCAB_SIZE, 100).tolist()
    found = []
    # Matrices outside the experts stay in F32.
    write_model(model, tmp_path / "m.gguf", "MXFP4", is_quantized=lambda name: ".experts." in name)
    for path in (write_mxfp4(model, tmp_path / "folder"), tmp_path / "m.gguf"):
        checkpoint = open_checkpoint(path)
        backend = build(checkpoint, max_batch_total_tokens=256, block_size=16)
        found.append(backend.score(ids))
        # Groups are twice as large as in the file.
        need = memory_need(checkpoint, kv_dtype="int8", **step_limits(None, None)).weight_bytes
        assert need == pytest.approx(backend.info.weight_bytes, rel=0.1)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("model", "case", "bound"),
    [("llama2", case, INT_BOUND) for case in ("gptq", "awq", "packed_8_with_zeros", "fp8_dynamic", "bitsandbytes_4")]
    + [("deepseek_v2", "gptq", EXPERTS_BOUND), ("deepseek_v2", "fp8_dynamic", EXPERTS_BOUND)],
)
def test_logprobs_of_quantised_safetensors(
    model: str, case: str, bound: float, tiny_model: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_quantized(tiny_model(model).folder, tmp_path, case)
    checkpoint = open_checkpoint(tmp_path)
    ids = np.random.default_rng(17).integers(0, VOCAB_SIZE, 100).tolist()
    expected = log_softmax(ReferenceBackend(checkpoint).score(ids))
    with caplog.at_level("INFO"):
        backend = build(checkpoint, kv_cache_dtype="f16", max_batch_total_tokens=256, block_size=16)
    found = log_softmax(backend.score(ids))
    assert np.abs(found - expected).mean() < bound
    assert "quantised weights repacked" in caplog.text
