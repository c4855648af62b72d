"""The CPU backend on tiny models: close to the reference, and equal to itself bit for bit."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.cpu.tiny_backend import BLOCK_SIZE, NUM_BLOCKS, Sequences, build_tiny, log_softmax
from tests.models.tiny import CASES, VOCAB_SIZE, TinyModels
from tests.plans import new_chunk, new_start
from tests.running import all_sampled, error_of, token_of
from tests.tiers import matrix
from trunkline_server import _kernels
from trunkline_server._proto.shard_pb2 import Chunk, SampledToken, SamplingParams
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.interface import INVALID_PLAN, sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.errors import DoesNotFit
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

# Bounds on mean absolute differences of log-probabilities, a quarter to a half above the largest measured: 0.0122 over
# prompts of all models (int8), and 0.00038, 0.0080 and 0.134 over generated tokens. Every instruction set gives the
# same bits, so other machines measure the same.
LOGPROB_BOUND = 0.016
# Five of this model's rows use another expert when K and V are rounded to int8. In f16 the difference is 0.0003.
GPT_OSS_BOUND = 0.05
GENERATION_BOUNDS = {"f16": 0.0006, "int8": 0.011, "int4": 0.17}
PROMPT = np.random.default_rng(11).integers(0, VOCAB_SIZE, 90).tolist()
GREEDY = sampling_params(logprobs=True, num_top_logprobs=5)
RANDOM = sampling_params(
    temperature=0.9, top_p=0.95, top_k=50, seed=7, logprobs=True, presence_penalty=0.3, repetition_penalty=1.1
)


# The prompt is longer than the windows of models that have them.
@pytest.fixture(params=["llama3", "mistral_window", "gemma2", "gemma3", "deepseek_v2"])
def checkpoint(tiny_model: TinyModels, request: pytest.FixtureRequest) -> Checkpoint:
    return open_checkpoint(tiny_model(request.param).folder)


@pytest.fixture
def backend(checkpoint: Checkpoint) -> CpuBackend:
    return build_tiny(checkpoint)


@pytest.mark.parametrize("case", sorted(CASES))
def test_logits_are_close_to_the_reference(tiny_model: TinyModels, case: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    ours = log_softmax(build_tiny(checkpoint).score(PROMPT))
    reference = ReferenceBackend(checkpoint, max_batch_total_tokens=256, max_step_tokens=128)
    theirs = log_softmax(reference.score(PROMPT))
    assert ours.shape == theirs.shape == (len(PROMPT), VOCAB_SIZE)
    assert np.abs(ours - theirs).mean() < (GPT_OSS_BOUND if case == "gpt_oss" else LOGPROB_BOUND)


@pytest.mark.parametrize(
    ("case", "dtype"),
    matrix(["mistral_window", "gemma2", "gemma3", "qwen2_window", "qwen3_window"], ["f16", "int8", "int4"]),
)
def test_generation_beyond_the_window_is_close_to_the_reference(tiny_model: TinyModels, case: str, dtype: str) -> None:
    """Prompt chunks straddle the window, then tokens are decoded; the f32 reference is forced to the same tokens."""
    checkpoint = open_checkpoint(tiny_model(case).folder)
    backend = build_tiny(checkpoint, kv_cache_dtype=dtype)
    prompt, num_output = PROMPT[:30], 60
    output = Sequences(backend, seed=0).run(prompt, [7, 29], num_output, GREEDY)
    token_ids = prompt + [token.token_id for token in output]
    reference = ReferenceBackend(checkpoint, max_batch_total_tokens=256, max_step_tokens=128)
    expected = log_softmax(reference.score(token_ids[:-1]))[len(prompt) - 1 :]
    differences = [abs(token.logprob - row[token.token_id]) for token, row in zip(output, expected, strict=True)]
    print(f"{case} {dtype}: mean |Δ logprob| {np.mean(differences):.5f}")
    assert np.mean(differences) < GENERATION_BOUNDS[dtype]


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_cuts_of_the_prompt_change_no_bit(backend: CpuBackend, sampling: SamplingParams) -> None:
    whole = Sequences(backend, seed=0).run(PROMPT, [], 6, sampling)
    assert len(whole) == 6
    for seed in range(8):
        cuts = sorted(random.Random(seed).sample(range(1, len(PROMPT)), 3))
        assert Sequences(backend, seed).run(PROMPT, cuts, 6, sampling) == whole, (seed, cuts)


@pytest.mark.parametrize("threads", [2, 3])
def test_the_number_of_threads_changes_no_bit(checkpoint: Checkpoint, backend: CpuBackend, threads: int) -> None:
    other = build_tiny(checkpoint, threads=threads)
    assert other.info.numeric_fingerprint == backend.info.numeric_fingerprint
    assert other.score(PROMPT).tobytes() == backend.score(PROMPT).tobytes()


def test_more_threads_than_cpus_are_a_warning(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture) -> None:
    usable = _kernels.max_parallel_threads()
    build_tiny(checkpoint, threads=usable)
    assert "share" not in caplog.text
    build_tiny(checkpoint, threads=usable + 1)
    assert f"{usable + 1} threads share {usable} CPUs" in caplog.text


def test_neighbours_change_no_bit(backend: CpuBackend) -> None:
    alone = Sequences(backend, seed=0).run(PROMPT, [], 4, RANDOM)
    sequences = Sequences(backend, seed=1)
    backend.start(new_start(1, PROMPT, len(PROMPT), RANDOM))
    output: list[SampledToken] = []
    position, blocks = 0, sequences.blocks(len(PROMPT) + 4)
    for step in range(4):
        # A new neighbour joins in every step; earlier ones decode.
        neighbour = step + 2
        backend.start(new_start(neighbour, PROMPT[: 10 + step], 10 + step, GREEDY))
        end = len(PROMPT) + step
        chunks = [new_chunk(1, position, end - position, blocks if step == 0 else [], sample=True)]
        # Each began one token longer and one step later than the one before it, so all are at the same position.
        chunks += [new_chunk(other, 9 + step, 1, [], sample=True) for other in range(2, neighbour)]
        chunks.append(new_chunk(neighbour, 0, 10 + step, sequences.blocks(BLOCK_SIZE), sample=True))
        outcomes = backend.step(chunks).sequences
        assert [outcome.sequence_id for outcome in outcomes] == [1, *range(2, neighbour + 1)]
        output.append(token_of(outcomes[0]))
        position = end
    assert output == alone


@pytest.mark.parametrize("num_hit", [1, 15, 16, 17, 63, 89])
def test_a_prefix_hit_changes_no_bit(backend: CpuBackend, num_hit: int) -> None:
    cold = Sequences(backend, seed=0).run(PROMPT, [], 3, GREEDY)
    sequences = Sequences(backend, seed=2)
    holder = sequences.blocks(len(PROMPT))
    backend.start(new_start(8, PROMPT, len(PROMPT), GREEDY))
    backend.step([new_chunk(8, 0, len(PROMPT), holder, sample=False)])
    backend.end(8)
    blocks = holder[: num_hit // BLOCK_SIZE] + sequences.blocks(len(PROMPT) + 3 - num_hit // BLOCK_SIZE * BLOCK_SIZE)
    if num_hit % BLOCK_SIZE:
        backend.copy_block(holder[num_hit // BLOCK_SIZE], blocks[num_hit // BLOCK_SIZE], num_hit % BLOCK_SIZE)
    backend.start(new_start(9, PROMPT, len(PROMPT), GREEDY))
    output = all_sampled(backend.step([new_chunk(9, num_hit, len(PROMPT) - num_hit, blocks, sample=True)]))
    for end in (len(PROMPT) + 1, len(PROMPT) + 2):
        output += all_sampled(backend.step([new_chunk(9, end - 1, 1, [], sample=True)]))
    assert output == cold


@pytest.mark.parametrize(
    "chunk",
    [
        new_chunk(1, 0, len(PROMPT) + 1, list(range(6)), sample=True),
        new_chunk(1, 0, len(PROMPT), [0], sample=True),
        new_chunk(1, 0, len(PROMPT), [*range(5), NUM_BLOCKS], sample=True),
        new_chunk(1, 5, len(PROMPT), list(range(6)), sample=True),
    ],
    ids=["token not known", "no block", "block not in the pool", "past the end"],
)
def test_only_the_invalid_chunk_fails(backend: CpuBackend, chunk: Chunk) -> None:
    backend.start(new_start(1, PROMPT, len(PROMPT), GREEDY))
    backend.start(new_start(2, PROMPT, len(PROMPT), GREEDY))
    good = new_chunk(2, 0, 30, [20, 21], sample=False)
    (failed,) = backend.step([chunk, good]).sequences
    assert (failed.sequence_id, error_of(failed).code) == (1, INVALID_PLAN)
    (sampled,) = all_sampled(backend.step([new_chunk(2, 30, len(PROMPT) - 30, [22, 23, 24, 25], sample=True)]))
    backend.end(1)
    backend.end(2)
    assert [sampled.token_id] == [Sequences(backend, seed=0).run(PROMPT, [], 1, GREEDY)[0].token_id]


def test_info_describes_the_backend(backend: CpuBackend, checkpoint: Checkpoint) -> None:
    info = backend.info
    dtype = "int8" if checkpoint.config.attention.latent is None else "f16"
    assert (info.block_size, info.num_device_blocks, info.kv_dtype) == (BLOCK_SIZE, NUM_BLOCKS, dtype)
    assert info.bytes_per_block > 0
    assert info.weight_bytes > 0
    assert "1 thread" in info.device
    other = build_tiny(checkpoint, block_size=32)
    assert other.info.numeric_fingerprint != info.numeric_fingerprint


@pytest.mark.parametrize("dtype", ["int8", "int4", "f16", "bf16"])
@pytest.mark.parametrize("case", ["llama3", "gemma2"])
def test_the_kv_dtype_is_reported_and_part_of_the_fingerprint(tiny_model: TinyModels, case: str, dtype: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    backend = build_tiny(checkpoint, kv_cache_dtype=dtype, block_size=64)
    auto = build_tiny(checkpoint, block_size=64)
    assert (backend.info.kv_dtype, auto.info.kv_dtype) == (dtype, "int8")
    assert (backend.info.numeric_fingerprint == auto.info.numeric_fingerprint) == (dtype == "int8")
    assert (backend.info.bytes_per_block > auto.info.bytes_per_block) == (dtype in ("f16", "bf16"))
    assert (backend.info.bytes_per_block < auto.info.bytes_per_block) == (dtype == "int4")


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded(checkpoint: Checkpoint) -> None:
    with pytest.raises(DoesNotFit, match="of memory are available"):
        build_tiny(checkpoint, available_bytes=1 << 16)
