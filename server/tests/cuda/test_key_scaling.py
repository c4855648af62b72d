"""int4's key scaling: measured as the reference measures it, and without effect except on rounding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.cuda.kv_oracle import first_keys, hadamard, i32, make_pool, make_rope, make_scene, random, stored
from tests.models.tiny import TinyModels
from tests.tiers import first, full
from trunkline_server.backends.cuda import calibrate
from trunkline_server.backends.cuda.calibrate import measure_key_scaling
from trunkline_server.backends.cuda.kernels.rope_kv import rope_and_write_kv
from trunkline_server.backends.cuda.key_scaling import KeyScaling, rotated
from trunkline_server.backends.cuda.loading import load_weights
from trunkline_server.backends.reference import calibrate as reference_calibrate
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import open_checkpoint

TILE = 64
NUM_TOKENS = 2 * TILE


def made_scaling(device: str, dtype: torch.dtype, head_size: int = 32, num_tiles: int = 6) -> KeyScaling:
    """Returns a scaling of two layers and one KV head, with factors far apart and means larger than keys."""
    factors = torch.exp(random(2, 1, 1, head_size, seed=7))
    means = random(2, 1, num_tiles, head_size, seed=8) * 3
    return KeyScaling(torch.cat([factors, 1 / factors], dim=1).to(device), means.to(dtype).to(device))


@pytest.mark.parametrize(
    "case", first(["llama3", "qwen3", "qwen2_shallow", "smollm3", "smollm3_marked"], "smollm3_marked")
)
def test_scaling_matches_the_reference(
    case: str, tiny_model: TinyModels, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both use the same tokens, and blocks as large as tiles. The reference samples the last layer's queries."""
    monkeypatch.setattr(calibrate, "NUM_TOKENS", NUM_TOKENS)
    monkeypatch.setattr(reference_calibrate, "_NUM_TOKENS", NUM_TOKENS)
    checkpoint = open_checkpoint(tiny_model(case).folder)
    config = checkpoint.config
    reference = ReferenceBackend(checkpoint, kv_cache_dtype="int4", block_size=TILE)._pool._key_scaling
    assert reference is not None
    with torch.inference_mode():
        weights = load_weights(checkpoint, torch.device(device), torch.float32)
        actual = measure_key_scaling(weights, config, torch.float32, torch.device(device))
    turned = hadamard(config.head_size)
    for layer in range(config.num_layers):
        if layer < config.num_layers - 1:
            assert torch.allclose(actual.factors[layer, 0].cpu(), reference.factor[layer], rtol=1e-3)
        assert torch.allclose(actual.factors[layer, 0] * actual.factors[layer, 1], torch.ones(1, device=device))
        factor = actual.factors[layer, 0].cpu()
        expected = (reference.mean[layer] * factor) @ turned
        assert torch.allclose(
            actual.means[layer, :, 0].cpu(), expected, atol=1e-3 * max(1.0, float(expected.abs().max()))
        )
        assert actual.means[layer].any() == reference.mean[layer].any()


def test_means_rotate_from_tile_to_tile_like_keys(device: str) -> None:
    rope = make_rope(32)
    shared = random(1, 32).double()
    positions = torch.arange(4 * TILE)
    keys = rotated(shared.expand(4 * TILE, 1, 32), positions // TILE * TILE, rope).float()
    scaling = KeyScaling.neutral(
        num_layers=1, num_kv_heads=1, head_size=32, num_positions=6 * TILE, dtype=torch.float32,
        device=torch.device(device),
    )  # fmt: skip
    noise = random(4 * TILE, 1, 32, seed=2) * 0.1
    scaling.measure(0, random(4 * TILE, 2, 32, seed=1).to(device), (keys + noise).to(device), rope, takes_mean=True)
    factor = scaling.factors[0, 0].cpu()
    expected = rotated(shared.expand(6, 1, 32), torch.arange(6) * TILE, rope).float()[:, 0]
    means = scaling.means[0, 0].cpu() @ hadamard(32) / 32 / factor
    # The mean of so many draws of the noise.
    assert torch.allclose(means, expected, atol=5 * 0.1 / (4 * TILE) ** 0.5)


def test_heads_without_keys_are_not_scaled(device: str) -> None:
    scaling = KeyScaling.neutral(
        num_layers=1, num_kv_heads=2, head_size=32, num_positions=TILE, dtype=torch.float32, device=torch.device(device)
    )
    keys = random(TILE, 2, 32)
    keys[:, 0] = 0.0
    scaling.measure(0, random(TILE, 2, 32, seed=1).to(device), keys.to(device), None, takes_mean=True)
    assert torch.equal(scaling.factors[0, :, 0].cpu(), torch.ones(2, 32)) and not scaling.means[0, 0].any()
    assert (scaling.factors[0, :, 1] != 1.0).any() and scaling.means[0, 1].any()


def attended(scaling: KeyScaling | None, entry: tuple[int, int], device: str, **options: Any) -> torch.Tensor:
    """Returns attention over random keys that were stored with a scaling."""
    scene, context = make_scene([entry], device=device, format="f32"), entry[0]
    scene.pool.key_scaling = scaling
    keys, values, queries = (random(context, width, seed=width).to(device) for width in (32, 33, 64))
    positions, slots = i32(list(range(context)), device), scene.slots(0).int().to(device)
    written = rope_and_write_kv(queries, keys, values[:, :32], positions, slots, None, scene.pool, 1)
    return replace(scene, queries=written[context - entry[1] :]).attend(**options).cpu()


@pytest.mark.parametrize(
    ("entry", "window"),
    [
        ((150, 150), 40),
        ((300, 1), None),
        full((150, 150), None),
        full((300, 1), 40),
        full((64, 1), None),
        full((5, 5), 40),
    ],
)
def test_attention_is_the_same_with_and_without(entry: tuple[int, int], window: int | None, device: str) -> None:
    """In f32, without rounding to a few bits: the mean subtracted from keys is added to scores."""
    scalings = (None, made_scaling(device, torch.float32))
    results = [attended(scaling, entry, device, window=window) for scaling in scalings]
    assert not torch.equal(*results)
    assert torch.allclose(*results, atol=2e-4)


def test_keys_of_capped_scores_are_scaled_but_not_shifted(device: str) -> None:
    """A cap does not affect all scores of a tile equally, so nothing may be subtracted from keys there."""
    scaling = KeyScaling.neutral(
        num_layers=2, num_kv_heads=1, head_size=32, num_positions=TILE, dtype=torch.float32, device=torch.device(device)
    )
    scaling.measure(1, random(TILE, 2, 32).to(device), (random(TILE, 1, 32) + 3).to(device), None, takes_mean=False)
    assert not scaling.means.any() and (scaling.factors[1] != 1.0).any()
    results = [attended(one, (9, 9), device, soft_cap=0.5) for one in (None, scaling)]
    assert torch.allclose(*results, atol=1e-5)


def test_keys_are_scaled_then_transformed_then_shifted(device: str) -> None:
    scaling = made_scaling(device, torch.bfloat16)
    pool = make_pool("int4", device, num_kv_heads=1, key_scaling=scaling)
    q, k, v = (random(4, width, seed=width).bfloat16() for width in (64, 32, 33))
    positions, slots = [0, 5, 63, 70], [32, 5, 7, -1]
    rotated_q = rope_and_write_kv(
        q.to(device), k.to(device), v[:, :32].to(device), i32(positions, device), i32(slots, device), None, pool, 1
    )
    factor, inverse = scaling.factors[1, :, 0].cpu()
    matrix = hadamard(32)
    expected_q = (q.float().view(4, 2, 32) * inverse) @ matrix / 32
    assert torch.allclose(rotated_q.float().cpu().view(4, 2, 32), expected_q, rtol=4e-3, atol=1e-3)
    tiles = torch.tensor(positions) // TILE
    expected_k = (k.float() * factor) @ matrix - scaling.means[1, 0].cpu().float()[tiles]
    keys, _ = stored(pool, 1)
    error = (keys[slots[:3], 0] - expected_k[:3]).norm(dim=-1) / expected_k[:3].norm(dim=-1)
    assert error.max() < 0.14
    # Position 0, with its correction in another four bits.
    better = keys[32, 0] + first_keys(pool, 1)[2, 0]
    assert (better - expected_k[0]).norm() / expected_k[0].norm() < 0.02
    assert not first_keys(pool, 1)[0].any(), "other blocks hold no first key"
