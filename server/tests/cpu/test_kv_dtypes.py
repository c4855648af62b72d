"""Quantised K and V: the kernels against the reference backend, which rounds in the same way and computes in f32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cpu.tiny_backend import build_tiny, log_softmax
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.tiers import full
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

BLOCK_SIZE = 64
NUM_TOKENS = 256
PROMPT = np.random.default_rng(3).integers(0, VOCAB_SIZE, 200).tolist()
# Mean absolute difference of log-probabilities: weights may be rounded to bf16, queries and probabilities are bytes. A
# quarter above the largest measured, 0.0102 and 0.0356, both of smollm3.
BOUNDS = {"int8": 0.013, "int4": 0.045}
# The same relative to the difference from unrounded K and V; the largest measured are 0.68 and 0.24.
RELATIVE_BOUNDS = {"int8": 0.8, "int4": 0.3}


def build(checkpoint: Checkpoint, dtype: str, **changes: Any) -> CpuBackend:
    options = {"max_batch_total_tokens": NUM_TOKENS, "block_size": BLOCK_SIZE, "kv_cache_dtype": dtype}
    return build_tiny(checkpoint, **{**options, **changes})


def reference(checkpoint: Checkpoint, dtype: str) -> ReferenceBackend:
    return ReferenceBackend(checkpoint, max_batch_total_tokens=NUM_TOKENS, block_size=BLOCK_SIZE, kv_cache_dtype=dtype)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [
        ("llama3", "int8"),
        full("llama3", "int4"),
        full("llama_biases", "int8"),
        ("llama_biases", "int4"),
        full("qwen3", "int8"),
        full("qwen3", "int4"),
        full("smollm3", "int8"),
        full("smollm3", "int4"),
        full("gemma2", "int8"),
        ("gemma2", "int4"),
    ],
)
def test_logits_match_the_reference_with_the_same_rounding(tiny_model: TinyModels, case: str, dtype: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    ours = log_softmax(build(checkpoint, dtype).score(PROMPT))
    alike = np.abs(ours - log_softmax(reference(checkpoint, dtype).score(PROMPT))).mean()
    exact = np.abs(ours - log_softmax(reference(checkpoint, "f32").score(PROMPT))).mean()
    print(f"{case} {dtype}: {alike:.4f} from the same rounding, {exact:.4f} from none")
    assert alike < BOUNDS[dtype]
    assert alike < RELATIVE_BOUNDS[dtype] * exact, "the reference rounds otherwise than the kernels"


def test_key_scaling_matches_the_reference(tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("llama_biases").folder)
    config = checkpoint.config
    ours = build(checkpoint, "int4")._executor.key_scaling
    assert ours is not None
    numbers = np.frombuffer(ours, dtype="<f4").reshape(config.num_layers, config.num_kv_heads, 3, config.head_size)
    scaling = reference(checkpoint, "int4")._pool._key_scaling
    assert scaling is not None
    spread = scaling.mean.std().item()
    np.testing.assert_allclose(numbers[:, :, 0], scaling.mean, atol=0.1 * spread)
    np.testing.assert_allclose(numbers[:, :, 1], scaling.factor, rtol=0.1)
    np.testing.assert_allclose(numbers[:, :, 1] * numbers[:, :, 2], 1.0, rtol=1e-6)


def test_key_scaling_depends_only_on_the_model(tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model("llama3").folder)
    backend = build(checkpoint, "int4")
    for changes in (
        {"threads": 3},
        {"max_step_tokens": 37},
        {"max_step_sequences": 2},
        {"max_batch_total_tokens": 2048},
    ):
        other = build(checkpoint, "int4", **changes)
        assert other._executor.key_scaling == backend._executor.key_scaling, changes
        assert other.info.numeric_fingerprint == backend.info.numeric_fingerprint
        assert other.score(PROMPT).tobytes() == backend.score(PROMPT).tobytes()


def test_key_scaling_is_cached_and_measured_again_if_the_file_is_damaged(
    tiny_model: TinyModels, tmp_path: Path
) -> None:
    checkpoint = open_checkpoint(tiny_model("llama3").folder)
    cold = build(checkpoint, "int4", weights_cache=tmp_path)
    (path,) = tmp_path.glob("*.keys")
    content = path.read_bytes()
    assert content[32:] == cold._executor.key_scaling
    for damaged in (content[:-1], content[:40] + bytes([content[40] ^ 1]) + content[41:], b""):
        path.write_bytes(damaged)
        warm = build(checkpoint, "int4", weights_cache=tmp_path)
        assert warm._executor.key_scaling == cold._executor.key_scaling
        assert path.read_bytes() == content
    kept = build(checkpoint, "int4", weights_cache=tmp_path)
    assert kept.score(PROMPT).tobytes() == cold.score(PROMPT).tobytes()
