"""Sequences under a grammar, in both backends: masks, and tokens that are appended without sampling."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Timer

import numpy as np
import pytest
from tests.cpu.tiny_backend import build_tiny
from tests.models.tiny import VOCAB_SIZE, TinyModels
from tests.plans import changed, new_chunk, new_start
from tests.running import all_sampled, error_of, token_of
from tests.tiers import IS_FULL
from trunkline_server._proto.shard_pb2 import SamplingParams, SequenceResult, StepPlan
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.interface import INVALID_PLAN, sampling_params
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.engine import Engine
from trunkline_server.weights.checkpoint import open_checkpoint

Backend = CpuBackend | ReferenceBackend

PROMPT = np.random.default_rng(23).integers(0, VOCAB_SIZE, 20).tolist()
GREEDY = sampling_params(logprobs=True, num_top_logprobs=20)
NUM_MASK_BYTES = -(-VOCAB_SIZE // 8)


@pytest.fixture(params=["cpu", "reference"])
def backend(tiny_model: TinyModels, request: pytest.FixtureRequest) -> Backend:
    checkpoint = open_checkpoint(tiny_model("llama3").folder)
    if request.param == "reference":
        return ReferenceBackend(checkpoint, max_batch_total_tokens=1024, max_step_tokens=128)
    return build_tiny(checkpoint)


def mask_of(token_ids: Sequence[int]) -> bytes:
    return sum(1 << token_id for token_id in set(token_ids)).to_bytes(NUM_MASK_BYTES, "little")


def sample(
    backend: Backend, allowed: bytes, sampling: SamplingParams = GREEDY, prompt: Sequence[int] = PROMPT
) -> SequenceResult:
    """Samples the token after a prompt."""
    backend.start(new_start(1, prompt, len(prompt), sampling))
    (outcome,) = backend.step([new_chunk(1, 0, len(prompt), [0, 1], True, allowed_tokens=allowed)]).sequences
    backend.end(1)
    return outcome


def test_the_likeliest_allowed_token_is_taken_and_logprobs_cover_all_tokens(backend: Backend) -> None:
    free = token_of(sample(backend, b""))
    for top in free.top_logprobs[1:6]:
        # Allows this token and the least likely reported ones, but never the likeliest.
        allowed = mask_of([top.token_id, *(other.token_id for other in free.top_logprobs[10:])])
        masked = token_of(sample(backend, allowed))
        assert (masked.token_id, masked.logprob) == (top.token_id, top.logprob)
        assert masked.top_logprobs == free.top_logprobs


def test_penalties_behind_a_mask_lower_logits(backend: Backend) -> None:
    free = token_of(sample(backend, b""))
    (first, top), (second, next_best), (third, _) = ((one.token_id, one.logprob) for one in free.top_logprobs[:3])
    everything = mask_of(range(VOCAB_SIZE))
    gap = top - next_best
    for addend, expected in [(-0.9 * gap, first), (-1.1 * gap, second)]:
        lowered = token_of(sample(backend, everything + struct.pack("<IfIf", first, addend, VOCAB_SIZE + 5, 1e9)))
        assert (lowered.token_id, lowered.top_logprobs) == (expected, free.top_logprobs)
    both = token_of(sample(backend, everything + struct.pack("<IfIf", second, -1e30, first, -1e30)))
    assert both.token_id == third
    assert "a mask of" in error_of(sample(backend, everything + b"1234")).message


def test_no_other_token_is_ever_sampled(backend: Backend) -> None:
    allowed = [3, 8, VOCAB_SIZE - 1]
    seen = set()
    for seed in range(60 if IS_FULL else 20):
        sampling = sampling_params(temperature=2.0, seed=seed, repetition_penalty=1.2, min_p=0.01)
        seen.add(token_of(sample(backend, mask_of(allowed), sampling)).token_id)
    assert seen <= set(allowed) and len(seen) > 1


def test_a_mask_of_all_changes_nothing(backend: Backend) -> None:
    for seed in range(10 if IS_FULL else 4):
        sampling = changed(GREEDY, temperature=1.0, seed=seed, top_p=0.9)
        assert sample(backend, mask_of(range(VOCAB_SIZE)), sampling) == sample(backend, b"", sampling)


def test_a_wrong_mask_fails_only_its_sequence(backend: Backend) -> None:
    free = sample(backend, b"")
    for allowed, code in [(b"\xff" * (NUM_MASK_BYTES + 1), INVALID_PLAN), (bytes(NUM_MASK_BYTES), None)]:
        backend.start(new_start(1, PROMPT, len(PROMPT), GREEDY))
        backend.start(new_start(2, PROMPT, len(PROMPT), GREEDY))
        chunks = [
            new_chunk(1, 0, len(PROMPT), [0, 1], True),
            new_chunk(2, 0, len(PROMPT), [2, 3], True, allowed_tokens=allowed),
        ]
        good, bad = backend.step(chunks).sequences
        backend.end(1)
        backend.end(2)
        assert token_of(good).token_id == token_of(free).token_id
        assert bad.sequence_id == 2
        assert code in (None, error_of(bad).code)


def test_a_late_mask_acts_like_an_early_one(backend: Backend) -> None:
    sampling = changed(GREEDY, temperature=1.0, seed=4)
    allowed = mask_of([3, 8, 21, 40])
    expected = sample(backend, allowed, sampling)
    masks = backend.make_late_masks()
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling))
    with ThreadPoolExecutor(1) as other:
        other.submit(masks.tell, 1, allowed)
        (outcome,) = backend.step([new_chunk(1, 0, len(PROMPT), [0, 1], True, awaits_mask=True)], masks).sequences
    assert expected.HasField("token")
    assert outcome == expected
    # An empty mask samples nothing, and the sequence continues from there.
    masks.tell(1, b"")
    first = len(PROMPT)
    assert backend.step([new_chunk(1, first, 1, [], True, awaits_mask=True)], masks).sequences == []
    assert len(all_sampled(backend.step([new_chunk(1, first + 1, 1, [], True, appended_token_ids=[9])]))) == 1
    masks.tell(1, b"\xff")
    (outcome,) = backend.step([new_chunk(1, first + 2, 1, [], True, awaits_mask=True)], masks).sequences
    assert error_of(outcome).code == INVALID_PLAN
    backend.end(1)
    # No masks will come.
    masks.close()
    backend.start(new_start(1, PROMPT, len(PROMPT), sampling))
    assert backend.step([new_chunk(1, 0, len(PROMPT), [0, 1], True, awaits_mask=True)], masks).sequences == []
    backend.end(1)


def test_waiting_for_a_mask_is_no_work(backend: Backend) -> None:
    """Only the wait is long, so that the time of the step is short without it."""
    engine = Engine(backend, vocab_size=VOCAB_SIZE)
    masks, wait_s = engine.make_late_masks(), 0.5
    starts = [new_start(number, PROMPT, len(PROMPT), GREEDY) for number in (1, 2)]
    chunks = [new_chunk(number, 0, len(PROMPT), [2 * number, 2 * number + 1], True) for number in (1, 2)]
    engine.step(StepPlan(step_id=1, starts=starts, chunks=chunks))
    teller = Timer(wait_s, masks.tell, (2, mask_of([3])))
    teller.start()
    began = time.perf_counter()
    awaits = new_chunk(2, len(PROMPT), 1, [], True, awaits_mask=True)
    result = engine.step(StepPlan(step_id=2, chunks=[new_chunk(1, len(PROMPT), 1, [], True), awaits]), masks)
    elapsed_us = (time.perf_counter() - began) * 1e6
    teller.join()
    assert 0 < result.device_time_us < elapsed_us - wait_s * 1e6 / 4
    # The next step does not wait.
    began = time.perf_counter()
    result = engine.step(StepPlan(step_id=3, chunks=[new_chunk(1, len(PROMPT) + 1, 1, [], True)]))
    elapsed_us = (time.perf_counter() - began) * 1e6
    assert 0 < result.device_time_us <= elapsed_us


def test_allowed_tokens_of_a_request_act_like_a_mask_of_each_sample(backend: Backend) -> None:
    sampling = changed(GREEDY, temperature=1.5, seed=9, repetition_penalty=1.3)
    allowed = mask_of(range(5, VOCAB_SIZE, 3))
    expected = sample(backend, allowed, sampling)
    assert sample(backend, b"", changed(sampling, allowed_tokens=allowed)) == expected
    both = sample(backend, mask_of([*range(8), 11]), changed(sampling, allowed_tokens=allowed))
    assert token_of(both).token_id in (5, 11)


def test_appended_tokens_act_like_sampled_ones(backend: Backend) -> None:
    """Tokens after two appended ones equal those after a prompt that contains the two."""
    appended = [7, 11]
    expected = token_of(sample(backend, b"", prompt=[*PROMPT, *appended]))
    backend.start(new_start(1, PROMPT, len(PROMPT), GREEDY))
    assert backend.step([new_chunk(1, 0, len(PROMPT) - 1, [0, 1], False)]).sequences == []
    first = len(PROMPT) - 1
    (outcome,) = all_sampled(backend.step([new_chunk(1, first, 3, [], True, appended_token_ids=appended)]))
    backend.end(1)
    assert outcome.token_id == expected.token_id
    # The reference adds in another order there.
    np.testing.assert_allclose(outcome.logprob, expected.logprob, atol=1e-5)
