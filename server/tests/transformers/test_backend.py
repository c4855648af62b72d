"""The transformers backend is exact with itself, and describes itself rightly."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from tests.plans import changed, new_chunk, new_start
from tests.running import Runner, all_sampled, run_alone
from tests.transformers import tiny
from trunkline_server._proto.shard_pb2 import SampledToken
from trunkline_server.backends import registry
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.transformers.backend import TransformersBackend
from trunkline_server.errors import InvalidArgument
from trunkline_server.sampling.sampler import log_softmax

PROMPT = np.random.default_rng(5).integers(3, tiny.VOCAB_SIZE, 70).tolist()
WITH_LOGPROBS = sampling_params(logprobs=True, num_top_logprobs=3)
NUM_BLOCKS = 64


def make_backend(folder: Path, case: str = "stablelm", **changes: object) -> TransformersBackend:
    tiny.save(case, folder, **changes)
    return TransformersBackend(folder, max_batch_total_tokens=NUM_BLOCKS * 16)


@pytest.fixture(scope="module", params=["stablelm", "gemma2", "gpt_oss"])
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TransformersBackend:
    """Returns a backend that computes rows together, with and without windows, and one that computes them singly."""
    return make_backend(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(autouse=True)
def reset(request: pytest.FixtureRequest) -> None:
    if "backend" in request.fixturenames:
        request.getfixturevalue("backend").reset()


def run(backend: TransformersBackend, cuts: list[int], blocks: list[int]) -> list[SampledToken]:
    return run_alone(backend, PROMPT, cuts, blocks, WITH_LOGPROBS, num_decodes=5)


def test_cuts_and_places_do_not_change_bits(backend: TransformersBackend) -> None:
    whole = run(backend, [70], list(range(10)))
    scattered = np.random.default_rng(1).permutation(NUM_BLOCKS)[:10].tolist()
    assert run(backend, [1, 69], scattered) == whole
    assert run(backend, [33, 16, 1, 20], list(range(10))) == whole


def test_neighbours_do_not_change_bits(backend: TransformersBackend) -> None:
    alone = run(backend, [70], list(range(10)))
    free = iter(np.random.default_rng(2).permutation(NUM_BLOCKS).tolist())
    runners = []
    # Prompts that share a batch with the first one, before and after it.
    for sequence_id, prompt in ((2, PROMPT[::-1][:13]), (1, PROMPT), (3, PROMPT[:1]), (4, PROMPT[5:40])):
        params = WITH_LOGPROBS if sequence_id == 1 else sampling_params(temperature=1.0, seed=sequence_id)
        backend.start(new_start(sequence_id, prompt, len(prompt), params))
        runners.append(Runner(sequence_id, free, len(prompt)))
    for _ in range(6):
        result = backend.step([runner.chunk(runner.num_known - runner.num_computed) for runner in runners])
        for runner, token in zip(runners, all_sampled(result), strict=True):
            runner.take(token)
    assert runners[1].output == alone


def test_a_prefix_hit_and_a_copied_block_do_not_change_bits(backend: TransformersBackend) -> None:
    cold = run(backend, [70], list(range(10)))
    # Blocks 0 to 3 hold the first 64 tokens; block 4 holds 6 more, and a copy shares 3 of these.
    backend.copy_block(4, 20, 3)
    backend.start(new_start(1, PROMPT, len(PROMPT), WITH_LOGPROBS))
    assert all_sampled(backend.step([new_chunk(1, 67, 3, [0, 1, 2, 3, 20], True)])) == cold[:1]


def test_a_resumed_sequence_continues_as_if_never_preempted(backend: TransformersBackend) -> None:
    straight = run(backend, [70], list(range(10)))
    known = PROMPT + [sampled.token_id for sampled in straight[:3]]
    backend.start(new_start(1, known, len(PROMPT), WITH_LOGPROBS))
    resumed = Runner(1, iter(range(20, 30)), len(known))
    for num_tokens in [len(known), 1, 1]:
        resumed.take(*all_sampled(backend.step([resumed.chunk(num_tokens)])))
    assert resumed.output == straight[3:]


def test_scores_are_those_of_the_logits(backend: TransformersBackend) -> None:
    rows = backend.score(PROMPT)
    backend.start(new_start(1, PROMPT, len(PROMPT), WITH_LOGPROBS))
    runner, scores = Runner(1, iter(range(30, 40)), len(PROMPT)), []
    for num_tokens in (20, 50):
        for outcome in backend.step([changed(runner.chunk(num_tokens), score=True)]).sequences:
            scores += [score.logprob for score in outcome.scores]
    expected = [float(log_softmax(row)[token]) for row, token in zip(rows, PROMPT[1:], strict=False)]
    assert scores == expected


def test_it_describes_the_model_and_the_pool(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tiny.save("stablelm", tmp_path)
    options = registry.BackendOptions(max_batch_total_tokens=NUM_BLOCKS * 16, max_step_sequences=3, threads=1)
    with caplog.at_level(logging.WARNING):
        shape, backend = registry.build_transformers(tmp_path, options)
    info = backend.info
    assert (info.max_step_sequences, info.num_store_slots, backend.store) == (3, 0, None)
    assert info.device.endswith(", 1 threads")
    assert (info.block_size, info.num_device_blocks, info.kv_dtype) == (16, NUM_BLOCKS, "f32")
    assert info.bytes_per_block == 2 * 2 * 16 * 2 * 16 * 4
    assert info.weight_bytes >= (tmp_path / "model.safetensors").stat().st_size - 8192
    assert (shape.architecture, shape.vocab_size, shape.max_position_embeddings) == ("stablelm", tiny.VOCAB_SIZE, 128)
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads, shape.head_size) == (2, 4, 2, 16)
    assert [record.getMessage() for record in caplog.records if "slower" in record.getMessage()]


def test_weights_keep_their_dtype(tmp_path: Path) -> None:
    backend = make_backend(tmp_path, dtype="bfloat16")
    assert backend.info.kv_dtype == "bf16"
    assert run(backend, [70], list(range(10))) == run(backend, [3, 67], list(range(20, 30)))


def test_the_fingerprint_tells_weights_apart(tmp_path: Path) -> None:
    one, other = make_backend(tmp_path / "one"), make_backend(tmp_path / "other", rope_theta=500.0)
    assert one.info.numeric_fingerprint != other.info.numeric_fingerprint
    again = TransformersBackend(tmp_path / "one")
    assert again.info.numeric_fingerprint == one.info.numeric_fingerprint


def test_a_context_ends_where_all_positions_would_change(tmp_path: Path) -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [2.0] * 8, "short_factor": [1.0] * 8}
    backend = make_backend(tmp_path, "phi3", rope_parameters=rope, original_max_position_embeddings=64)
    assert backend.shape.max_position_embeddings == 64


def test_another_dtype_of_k_and_v_is_refused(tmp_path: Path) -> None:
    tiny.save("stablelm", tmp_path)
    with pytest.raises(InvalidArgument, match=r"`--kv-cache-dtype` is int8, .* the dtype of the weights, f32"):
        TransformersBackend(tmp_path, kv_cache_dtype="int8")
