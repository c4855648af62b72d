"""Latent attention on the CPU: what a token takes in the cache, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.cpu.tiny_backend import BLOCK_SIZE, build_tiny, log_softmax
from tests.models.tiny import VOCAB_SIZE, TinyModel, TinyModels
from trunkline_server.backends.cpu.memory import memory_need
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.errors import BackendUnavailable, InvalidArgument
from trunkline_server.weights.checkpoint import open_checkpoint

PROMPT = np.random.default_rng(19).integers(0, VOCAB_SIZE, 60).tolist()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_a_token_takes_its_latent_and_its_rotated_part_alone(tiny_model: TinyModels, dtype: str) -> None:
    checkpoint = open_checkpoint(tiny_model("deepseek_v2").folder)
    config, backend = checkpoint.config, build_tiny(checkpoint, kv_cache_dtype=dtype)
    assert backend.info.kv_dtype == dtype
    values = model_values(config.num_layers, tiny_model("deepseek_v2").config)
    assert backend.info.bytes_per_block == BLOCK_SIZE * 2 * values
    need = memory_need(checkpoint, kv_dtype=dtype, max_step_tokens=8, max_step_sequences=8, block_size=BLOCK_SIZE)
    assert need.kv_bytes_per_token == 2 * values
    reference = ReferenceBackend(checkpoint, block_size=BLOCK_SIZE)
    assert reference.info.bytes_per_block == BLOCK_SIZE * 4 * values


def model_values(num_layers: int, config: dict[str, Any]) -> int:
    """Returns how many numbers of one token are kept."""
    return num_layers * int(config["kv_lora_rank"] + config["qk_rope_head_dim"])


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_rounding_latents_to_integers_is_refused(tiny_model: TinyModels, dtype: str) -> None:
    checkpoint = open_checkpoint(tiny_model("deepseek_v2").folder)
    with pytest.raises(InvalidArgument, match=f"is {dtype}, but the cpu backend keeps the latents of deepseek_v2 as"):
        build_tiny(checkpoint, kv_cache_dtype=dtype)
    with pytest.raises(InvalidArgument, match=f"is {dtype}, but the reference backend keeps latents as f32"):
        ReferenceBackend(checkpoint, kv_cache_dtype=dtype)


def test_a_draft_model_of_another_kind_has_its_own_dtype(tiny_model: TinyModels) -> None:
    latent, plain = (open_checkpoint(tiny_model(case).folder) for case in ("deepseek_v2", "llama3"))
    for main, draft, dtype in ((plain, latent, "int8"), (latent, plain, "f16")):
        backend = build_tiny(main, draft=draft)
        assert backend.info.kv_dtype == dtype
        assert backend.info.max_own_drafts > 0


def test_latents_that_are_not_whole_vectors_are_refused(tiny_model: TinyModels, tmp_path: Any) -> None:
    odd = TinyModel("deepseek_v2")
    odd.config = {**odd.config, "kv_lora_rank": 24}
    with pytest.raises(BackendUnavailable, match="`latent_size` is 24, expected a multiple of 16 up to the head size"):
        build_tiny(open_checkpoint(odd.save(tmp_path / "m")))


def test_halves_rotate_like_neighbours_in_another_order(tiny_model: TinyModels, tmp_path: Any) -> None:
    """The same weights in the order of `rope_interleave: false` give the same scores."""
    neighbours, halves = TinyModel("deepseek_v3"), TinyModel("deepseek_v3")
    halves.config = {**halves.config, "rope_interleave": False}
    size = halves.config["qk_rope_head_dim"]
    for name, weight in halves.weights.items():
        if name.endswith(("q_rope.weight", "k_rope.weight")):
            pairs = weight.reshape(-1, size // 2, 2, weight.shape[1])
            halves.weights[name] = np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(weight.shape))
    expected, got = (
        ReferenceBackend(open_checkpoint(model.save(tmp_path / name))).score(PROMPT)
        for name, model in (("neighbours", neighbours), ("halves", halves))
    )
    np.testing.assert_array_equal(log_softmax(got), log_softmax(expected))
