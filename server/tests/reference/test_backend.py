"""Paging of the reference backend: chunking, placement and batching do not change results."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
from tests import running
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import changed, new_chunk, new_start
from tests.running import Runner, all_sampled, error_of, token_of
from trunkline_server._proto.shard_pb2 import Chunk, SampledToken
from trunkline_server.backends.interface import INVALID_PLAN, NOT_FINITE, failure, sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.errors import InvalidArgument
from trunkline_server.sampling.sampler import log_softmax, top_logprobs
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

PROMPT = np.random.default_rng(5).integers(0, VOCAB_SIZE, 70).tolist()
WITH_LOGPROBS = sampling_params(logprobs=True, num_top_logprobs=3)
NUM_BLOCKS = 64


@pytest.fixture
def checkpoint(tiny_model: TinyModels) -> Checkpoint:
    return open_checkpoint(tiny_model("smollm3").folder)


@pytest.fixture
def backend(checkpoint: Checkpoint) -> ReferenceBackend:
    return ReferenceBackend(checkpoint, max_batch_total_tokens=NUM_BLOCKS * 16, max_step_tokens=256)


def run_alone(
    backend: ReferenceBackend, cuts: list[int], blocks: list[int], num_decodes: int = 5
) -> list[SampledToken]:
    return running.run_alone(backend, PROMPT, cuts, blocks, WITH_LOGPROBS, num_decodes=num_decodes)


assert_same = partial(running.assert_same, atol=1e-5)


@pytest.mark.parametrize("cuts", [[1, 69], [16, 16, 16, 16, 6], [69, 1], [7] * 10, [33, 37]])
def test_chunking_does_not_change_results(backend: ReferenceBackend, cuts: list[int]) -> None:
    whole = run_alone(backend, [70], list(range(10)))
    assert len(whole) == 6
    assert_same(run_alone(backend, cuts, list(range(10))), whole)


def test_scattered_blocks_do_not_change_results(backend: ReferenceBackend) -> None:
    contiguous = run_alone(backend, [70], list(range(10)))
    scattered = np.random.default_rng(1).permutation(NUM_BLOCKS)[:10].tolist()
    assert_same(run_alone(backend, [40, 30], scattered), contiguous)


def test_score_equals_steps(backend: ReferenceBackend, checkpoint: Checkpoint) -> None:
    logits = backend.score(PROMPT)
    assert logits.shape == (len(PROMPT), checkpoint.config.vocab_size)
    first = run_alone(backend, [70], list(range(10)), num_decodes=0)[0]
    assert first.token_id == int(logits[-1].argmax())
    small_steps = ReferenceBackend(checkpoint, max_batch_total_tokens=128, max_step_tokens=9)
    np.testing.assert_allclose(small_steps.score(PROMPT), logits, atol=1e-5)


@pytest.mark.parametrize("cuts", [[70], [1, 69], [16, 20, 34], [69, 1]])
def test_a_prompt_has_the_logprobs_of_its_logits(backend: ReferenceBackend, cuts: list[int]) -> None:
    rows = backend.score(PROMPT)
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling_params(num_top_prompt_logprobs=3, logprobs=True)))
    runner = Runner(1, iter(range(10)), len(PROMPT))
    scores, sampled = [], []
    for num_tokens in cuts:
        for outcome in backend.step([changed(runner.chunk(num_tokens), score=True)]).sequences:
            assert not outcome.HasField("error"), outcome
            scores += outcome.scores
            sampled += [outcome.token.token_id] if outcome.HasField("token") else []
    backend.end(1)
    assert sampled == [int(rows[-1].argmax())]
    assert len(scores) == len(PROMPT) - 1
    for row, token_id, score in zip(rows, PROMPT[1:], scores, strict=False):
        logprobs = log_softmax(row)
        assert score.logprob == pytest.approx(float(logprobs[token_id]), abs=1e-5)
        assert score.rank == int(np.count_nonzero(row >= row[token_id]))
        assert [top.token_id for top in score.top_logprobs] == [top.token_id for top in top_logprobs(logprobs, 3)]


def test_a_batch_does_not_change_results(backend: ReferenceBackend) -> None:
    alone = run_alone(backend, [70], list(range(10)))
    backend.start(new_start(1, PROMPT, len(PROMPT), WITH_LOGPROBS))
    free = iter(np.random.default_rng(2).permutation(NUM_BLOCKS).tolist())
    runners = [Runner(1, free, len(PROMPT))]
    for sequence_id in (2, 3):
        prompt = PROMPT[::-1][: 11 * sequence_id]
        backend.start(new_start(sequence_id, prompt, len(prompt), sampling_params(temperature=1.0, seed=sequence_id)))
        runners.append(Runner(sequence_id, free, len(prompt)))
    for _ in range(6):
        result = backend.step([runner.chunk(runner.num_known - runner.num_computed) for runner in runners])
        for runner, outcome in zip(runners, result.sequences, strict=True):
            assert outcome.sequence_id == runner.sequence_id
            runner.take(token_of(outcome))
    assert_same(runners[0].output, alone)


def test_a_prefix_hit_and_a_copied_block_do_not_change_results(backend: ReferenceBackend) -> None:
    cold = run_alone(backend, [70], list(range(10)))
    # Blocks 0 to 3 hold the first 64 tokens; block 4 holds 6 more, and a copy shares 3 of these.
    backend.copy_block(4, 20, 3)
    backend.start(new_start(2, PROMPT, len(PROMPT), WITH_LOGPROBS))
    assert_same(all_sampled(backend.step([new_chunk(2, 67, 3, [0, 1, 2, 3, 20], True)])), cold[:1])


def test_a_resumed_sequence_continues_as_if_never_preempted(backend: ReferenceBackend) -> None:
    params = sampling_params(temperature=1.0, seed=11, frequency_penalty=0.5, repetition_penalty=1.3)
    backend.start(new_start(1, PROMPT, len(PROMPT), params))
    straight = Runner(1, iter(range(10)), len(PROMPT))
    for num_tokens in [70, *[1] * 7]:
        straight.take(*all_sampled(backend.step([straight.chunk(num_tokens)])))
    known = PROMPT + [token.token_id for token in straight.output[:4]]
    backend.end(1)
    backend.start(new_start(2, known, len(PROMPT), params))
    resumed = Runner(2, iter(range(20, 30)), len(known))
    for num_tokens in [len(known), 1, 1, 1]:
        resumed.take(*all_sampled(backend.step([resumed.chunk(num_tokens)])))
    assert [token.token_id for token in resumed.output] == [token.token_id for token in straight.output[4:]]


def test_sampled_tokens_have_the_requested_logprobs(backend: ReferenceBackend) -> None:
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling_params()))
    assert backend.step([new_chunk(1, 0, 40, [0, 1, 2], False)]).sequences == []
    (plain,) = all_sampled(backend.step([new_chunk(1, 40, 30, [3, 4], True)]))
    assert (plain.logprob, list(plain.top_logprobs)) == (0.0, [])
    (asked,) = run_alone(backend, [70], list(range(5)), num_decodes=0)
    top = asked.top_logprobs[0]
    assert (top.token_id, top.logprob) == (asked.token_id, asked.logprob)
    assert len(asked.top_logprobs) == 3


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (new_chunk(9, 0, 1, [0], True), "not started"),
        (new_chunk(1, 0, 0, [0], False), "no tokens"),
        (new_chunk(1, 0, 71, list(range(5)), True), "70 tokens are known"),
        (new_chunk(1, 0, 70, [0, 1, 2, 3], True), "cannot hold 70"),
        (new_chunk(1, 0, 70, [0, 1, 2, 3, NUM_BLOCKS], True), "not below 64"),
        (new_chunk(1, 0, 40, [0, 1, 2], True), "samples after position 39"),
    ],
)
def test_an_invalid_chunk_fails_only_its_sequence(backend: ReferenceBackend, chunk: Chunk, says: str) -> None:
    for sequence_id in (1, 2):
        backend.start(new_start(sequence_id, PROMPT, len(PROMPT), sampling_params()))
    good = new_chunk(2, 0, 70, [50, 51, 52, 53, 54], True)
    failed, sampled = backend.step([chunk, good]).sequences
    assert (failed.sequence_id, error_of(failed).code) == (chunk.sequence_id, INVALID_PLAN)
    assert says in failed.error.message
    assert sampled.HasField("token")
    assert sampled.sequence_id == 2


def test_a_gap_between_chunks_is_an_invalid_plan(backend: ReferenceBackend) -> None:
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling_params()))
    backend.step([new_chunk(1, 0, 10, [0, 1, 2, 3, 4], False)])
    (failed,) = backend.step([new_chunk(1, 12, 58, [], True)]).sequences
    assert "10 are computed" in error_of(failed).message


def test_a_step_over_its_limits_is_an_invalid_plan(checkpoint: Checkpoint) -> None:
    backend = ReferenceBackend(checkpoint, max_step_tokens=80, max_step_sequences=2)
    for sequence_id in (1, 2, 3):
        backend.start(new_start(sequence_id, PROMPT, len(PROMPT), sampling_params()))
    blocks = iter(range(100))
    chunks = [
        new_chunk(1, 0, 70, [next(blocks) for _ in range(5)], True),
        new_chunk(2, 0, 11, [next(blocks)], False),
        new_chunk(2, 0, 10, [next(blocks)], False),
        new_chunk(3, 0, 1, [next(blocks)], False),
    ]
    outcomes = backend.step([chunks[0], chunks[1]]).sequences
    assert "81 tokens" in error_of(outcomes[1]).message
    backend.reset()
    for sequence_id in (1, 2, 3):
        backend.start(new_start(sequence_id, PROMPT, len(PROMPT), sampling_params()))
    outcomes = backend.step([chunks[0], chunks[2], chunks[3]]).sequences
    assert [outcome.WhichOneof("outcome") for outcome in outcomes] == ["token", "error"]
    assert "more than 2 chunks" in outcomes[1].error.message


def test_non_finite_logits_fail_only_their_sequence(backend: ReferenceBackend) -> None:
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling_params()))
    backend.start(new_start(2, PROMPT[:16], 16, sampling_params()))
    backend._pool.values[0, :16] = float("nan")
    chunks = [new_chunk(1, 16, 54, [0, 1, 2, 3, 4], True), new_chunk(2, 0, 16, [9], True)]
    failed, sampled = backend.step(chunks).sequences
    assert failed == failure(1, NOT_FINITE, "a logit is not a number")
    assert sampled.HasField("token")


def test_score_refuses_long_texts_and_running_sequences(backend: ReferenceBackend) -> None:
    with pytest.raises(InvalidArgument, match="the pool holds 1024"):
        backend.score([1] * 1025)
    with pytest.raises(InvalidArgument):
        backend.score([])
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling_params()))
    with pytest.raises(InvalidArgument, match="1 sequences are started"):
        backend.score(PROMPT)
    backend.reset()
    backend.score(PROMPT)


def test_info_describes_the_pool(backend: ReferenceBackend, checkpoint: Checkpoint) -> None:
    config, info = checkpoint.config, backend.info
    assert info.num_device_blocks == NUM_BLOCKS
    assert info.bytes_per_block == 2 * config.num_layers * 16 * config.num_kv_heads * config.head_size * 4
    num_weights = sum(checkpoint.tensor(name).num_elements for name in checkpoint.names() if name != "lm_head.weight")
    assert info.weight_bytes == 4 * num_weights
    assert re.fullmatch("[0-9a-f]{32}", info.numeric_fingerprint)


def test_numeric_fingerprint_tells_weights_apart(backend: ReferenceBackend, tiny_model: TinyModels) -> None:
    other = ReferenceBackend(open_checkpoint(tiny_model("qwen3").folder))
    same = ReferenceBackend(open_checkpoint(tiny_model("smollm3").folder))
    assert other.info.numeric_fingerprint != backend.info.numeric_fingerprint
    assert same.info.numeric_fingerprint == backend.info.numeric_fingerprint


def test_limits_below_one_are_refused(checkpoint: Checkpoint) -> None:
    for name in ("max_batch_total_tokens", "max_step_tokens", "max_step_sequences", "block_size"):
        with pytest.raises(InvalidArgument, match=f"`{name}` is 0, must be at least 1"):
            ReferenceBackend(checkpoint, **{name: 0})


def test_an_unsupported_kv_dtype_is_refused_by_name(checkpoint: Checkpoint) -> None:
    message = "`--kv-cache-dtype` is bf16, but the reference backend supports f32, int8, int4; hint: use auto"
    with pytest.raises(InvalidArgument, match=re.escape(message)):
        ReferenceBackend(checkpoint, kv_cache_dtype="bf16")
    assert ReferenceBackend(checkpoint, kv_cache_dtype="f32").info.kv_dtype == "f32"
