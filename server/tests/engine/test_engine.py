"""The engine by itself: the order of a plan's parts, and their effects on sequences."""

from __future__ import annotations

import pytest
from tests import running
from tests.fakes.backend import POISON_TOKEN, VOCAB_SIZE, FakeBackend
from tests.plans import new_chunk, new_copy, new_start
from trunkline_server._proto.shard_pb2 import Chunk, SequenceStart, StepPlan, Watermark
from trunkline_server.backends.interface import INVALID_PLAN, NOT_FINITE, sampling_params
from trunkline_server.engine import Engine
from trunkline_server.errors import PlanError

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def engine(backend: FakeBackend) -> Engine:
    return Engine(backend, vocab_size=VOCAB_SIZE)


def start(sequence_id: int, token_ids: list[int]) -> SequenceStart:
    return new_start(sequence_id, token_ids, len(token_ids), sampling_params())


def whole(sequence_id: int, num_tokens: int, block_ids: list[int]) -> Chunk:
    return new_chunk(sequence_id, 0, num_tokens, block_ids, sample=True)


def sampled(engine: Engine, plan: StepPlan) -> list[int]:
    return [token.token_id for token in running.all_sampled(engine.step(plan))]


def test_ends_come_before_starts_and_copies_before_chunks(engine: Engine, backend: FakeBackend) -> None:
    expected = sampled(engine, StepPlan(step_id=1, starts=[start(1, PROMPT)], chunks=[whole(1, 10, [0, 1, 2])]))
    # The same id ends and starts again, the third block is shared by copy, and only the last token is computed.
    plan = StepPlan(
        step_id=2,
        ends=[1],
        starts=[start(1, PROMPT)],
        copies=[new_copy(2, 7, 1)],
        chunks=[new_chunk(1, 9, 1, [0, 1, 7], sample=True)],
    )
    assert sampled(engine, plan) == expected
    assert backend.num_sequences == 1


def test_a_run_ahead_plan_may_use_the_token_of_the_step_before(engine: Engine) -> None:
    engine.step(StepPlan(step_id=1, starts=[start(1, PROMPT)], chunks=[whole(1, 10, [0, 1, 2])]))
    run_ahead = [sampled(engine, StepPlan(step_id=i, chunks=[new_chunk(1, 8 + i, 1, [], sample=True)])) for i in (2, 3)]
    engine.reset()
    first = sampled(engine, StepPlan(step_id=1, starts=[start(1, PROMPT)], chunks=[whole(1, 10, [0, 1, 2])]))
    known = [*PROMPT, *first, *run_ahead[0]]
    again = StepPlan(step_id=2, ends=[1], starts=[start(2, known)], chunks=[whole(2, len(known), [4, 5, 6])])
    assert sampled(engine, again) == run_ahead[1]


def test_a_plan_of_only_ends_has_an_empty_result(engine: Engine, backend: FakeBackend) -> None:
    engine.step(StepPlan(step_id=1, starts=[start(1, PROMPT)]))
    result = engine.step(StepPlan(step_id=2, ends=[1]))
    assert (result.step_id, list(result.sequences)) == (2, [])
    assert (backend.num_sequences, engine.num_sequences) == (0, 0)


@pytest.mark.parametrize("step_id", [0, 2, 2**63])
def test_the_first_step_is_number_one(engine: Engine, step_id: int) -> None:
    with pytest.raises(PlanError, match=f"step id is {step_id}, expected 1"):
        engine.step(StepPlan(step_id=step_id))


def test_reset_forgets_sequences_and_the_step_number(engine: Engine, backend: FakeBackend) -> None:
    engine.step(StepPlan(step_id=1, starts=[start(1, PROMPT)]))
    engine.reset()
    assert (backend.num_sequences, backend.num_resets, engine.num_sequences) == (0, 1, 0)
    engine.step(StepPlan(step_id=1, starts=[start(1, PROMPT)]))


def test_a_failed_sequence_does_not_change_the_tokens_of_others(engine: Engine) -> None:
    expected = sampled(engine, StepPlan(step_id=1, starts=[start(1, PROMPT)], chunks=[whole(1, 10, [0, 1, 2])]))
    engine.reset()
    plan = StepPlan(
        step_id=1,
        starts=[start(1, PROMPT), start(2, [POISON_TOKEN]), start(3, [VOCAB_SIZE]), start(4, [1])],
        chunks=[whole(3, 1, [8]), whole(2, 1, [9]), whole(1, 10, [0, 1, 2]), whole(4, 2, [10])],
    )
    bad_start, poisoned, good, too_far = engine.step(plan).sequences
    codes = [running.error_of(outcome).code for outcome in (bad_start, poisoned, too_far)]
    assert codes == [INVALID_PLAN, NOT_FINITE, INVALID_PLAN]
    assert [running.token_of(good).token_id] == expected
    # The message, which is logged, has nothing of the prompt.
    assert str(VOCAB_SIZE) in bad_start.error.message
    # All of them can be ended, including the one that never reached the backend.
    engine.step(StepPlan(step_id=2, ends=[1, 2, 3, 4]))


def test_a_sequence_that_the_backend_refuses_fails_by_itself(
    engine: Engine, backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    accept = backend.start
    marked = start(2, PROMPT)
    marked.sampling.watermark.MergeFrom(Watermark(gamma=0.5, delta=2.0, key=15485863))

    def refuse(start: SequenceStart) -> None:
        if start.sequence_id == 2:
            raise ValueError("typical_p is 1e-40, expected at least 1e-30")
        accept(start)

    backend.start = refuse  # type: ignore[method-assign]
    plan = StepPlan(
        step_id=1,
        starts=[start(1, PROMPT), marked],
        chunks=[whole(1, 10, [0, 1, 2]), whole(2, 10, [3, 4, 5])],
    )
    good, refused = engine.step(plan).sequences
    assert good.HasField("token")
    assert "1e-40" in running.error_of(refused).message
    assert "the backend refused to start sequence 2" in caplog.text
    assert "15485863" not in caplog.text, "the key of a watermark is secret"
    engine.step(StepPlan(step_id=2, ends=[1, 2]))
    assert engine.num_sequences == 0


def test_only_the_chunk_of_the_ended_sequence_fails(engine: Engine) -> None:
    engine.step(StepPlan(step_id=1, starts=[start(1, PROMPT), start(2, PROMPT)]))
    outcomes = engine.step(
        StepPlan(step_id=2, ends=[1], chunks=[whole(1, 10, [0, 1, 2]), whole(2, 10, [3, 4, 5])])
    ).sequences
    assert [outcome.WhichOneof("outcome") for outcome in outcomes] == ["error", "token"]
