"""The Step stream: order, errors, takeover, disconnects; and Health beside it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from tests.fakes.backend import VOCAB_SIZE, FakeBackend
from tests.fakes.shard import DEADLINE_S, Client, Shard, serve
from tests.plans import new_start
from trunkline_server._kernels import MAX_ERROR_MESSAGE_BYTES
from trunkline_server._proto import shard_pb2 as pb
from trunkline_server.backends.interface import sampling_params


def start(sequence_id: int, token_ids: list[int], **fields: object) -> pb.SequenceStart:
    return new_start(sequence_id, token_ids, len(token_ids), sampling_params(**fields))


def first_plan(sequence_id: int = 1) -> pb.StepPlan:
    return pb.StepPlan(
        step_id=1,
        starts=[start(sequence_id, [1, 2, 3])],
        chunks=[pb.Chunk(sequence_id=sequence_id, num_tokens=3, new_block_ids=[0], sample=True)],
    )


def decode_plan(step_id: int, position: int) -> pb.StepPlan:
    return pb.StepPlan(
        step_id=step_id, chunks=[pb.Chunk(sequence_id=1, first_position=position, num_tokens=1, sample=True)]
    )


class Gate:
    """Holds each step until the gate is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, _chunks: object) -> None:
        self.entered.set()
        assert self.opened.wait(DEADLINE_S)


@pytest.fixture
def gate(backend: FakeBackend) -> Gate:
    backend.on_step = gate = Gate()
    return gate


def wait_until(holds: Callable[[], bool]) -> None:
    """Polls for a condition that has no event."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.005)):
        if holds():
            return
        pause.wait(0.005)
    raise AssertionError("the condition did not come to hold")


def test_health_answers_while_a_step_runs(client: Client, gate: Gate) -> None:
    assert client.health() == pb.HealthResponse()
    stream = client.open()
    stream.send(first_plan())
    assert gate.entered.wait(DEADLINE_S)
    during = client.health()
    assert (during.step_running, during.last_step_id) == (True, 0)
    gate.opened.set()
    stream.receive()
    after = client.health()
    assert (after.step_running, after.step_running_ms, after.last_step_id) == (False, 0, 1)


def test_second_stream_ends_the_first_with_aborted_and_starts_empty(client: Client, backend: FakeBackend) -> None:
    first = client.open()
    token = first.step(first_plan()).sequences[0].token
    second = client.open()
    # The same sequence id and step id again: the first stream left nothing behind.
    assert second.step(first_plan()).sequences[0].token == token
    error = first.error()
    assert error.code() == grpc.StatusCode.ABORTED
    assert "took over" in error.details()
    assert backend.num_sequences == 1


def test_second_stream_takes_over_while_the_first_computes(client: Client, gate: Gate) -> None:
    first = client.open()
    first.send(first_plan())
    assert gate.entered.wait(DEADLINE_S)
    second = client.open()
    second.send(first_plan())
    # The old stream fails before the step ends.
    assert first.error().code() == grpc.StatusCode.ABORTED
    gate.opened.set()
    assert second.receive().step_id == 1


def test_a_dropped_stream_forgets_its_sequences(client: Client, backend: FakeBackend) -> None:
    stream = client.open()
    stream.step(first_plan())
    assert backend.num_sequences == 1
    stream.call.cancel()
    wait_until(lambda: backend.num_resets == 1)
    assert backend.num_sequences == 0
    assert client.open().step(first_plan()).step_id == 1


def test_the_shard_survives_a_dropped_connection_during_a_step(shard: Shard, gate: Gate) -> None:
    with Client(shard.socket_path) as gone:
        stream = gone.open()
        stream.send(first_plan())
        assert gate.entered.wait(DEADLINE_S)
    gate.opened.set()
    with Client(shard.socket_path) as client:
        assert client.open().step(first_plan()).step_id == 1


def test_a_closed_stream_still_answers_every_plan(client: Client, backend: FakeBackend) -> None:
    stream = client.open()
    stream.send(first_plan())
    stream.send(decode_plan(2, 3))
    stream.close()
    assert [response.result.step_id for response in stream.call] == [1, 2]
    wait_until(lambda: backend.num_resets == 1)


def test_plans_beyond_the_queue_wait_and_are_answered_in_order(client: Client, gate: Gate) -> None:
    num_steps = 40
    stream = client.open()
    stream.send(first_plan())
    for step_id in range(2, num_steps + 1):
        plan = pb.StepPlan(step_id=step_id)
        if step_id % 3 == 0:
            plan.starts.append(start(step_id, [4]))
        stream.send(plan)
    gate.opened.set()
    assert [stream.receive().step_id for _ in range(num_steps)] == list(range(1, num_steps + 1))


def _plan(**fields: object) -> pb.StepPlan:
    return pb.StepPlan(**{"step_id": 2, **fields})


def _start(**fields: object) -> pb.StepPlan:
    whole = {"sequence_id": 9, "token_ids": [1], "num_prompt_tokens": 1, "sampling": sampling_params()}
    return _plan(starts=[pb.SequenceStart(**{**whole, **fields})])


def _sampling(**fields: object) -> pb.StepPlan:
    return _start(sampling=sampling_params(**fields))


def _copy(source: int, destination: int, num_tokens: int) -> pb.StepPlan:
    copy = pb.BlockCopy(source_block_id=source, destination_block_id=destination, num_tokens=num_tokens)
    return _plan(copies=[copy])


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (_plan(step_id=1), "step id is 1, expected 2"),
        (_plan(step_id=3), "step id is 3, expected 2"),
        (_plan(ends=[7]), "step 2 ends sequence 7, which is not started"),
        (_plan(ends=[1, 1]), "step 2 ends sequence 1, which is not started"),
        (_start(sequence_id=1), "step 2 starts sequence 1, which is started already"),
        (_start(sequence_id=0), "starts a sequence with id 0"),
        (_copy(16, 0, 1), "copies block 16, but the pool has 16 blocks"),
        (_copy(0, 99, 1), "copies block 99"),
        (_copy(2, 2, 1), "copies block 2 onto itself"),
        (_copy(1, 2, 0), "copies 0 tokens of a block, expected 1 to 4"),
        (_copy(1, 2, 5), "copies 5 tokens"),
        (_plan(chunks=[pb.Chunk(sequence_id=1)]), "chunk of sequence 1 has no tokens"),
        (
            _plan(chunks=[pb.Chunk(sequence_id=1, num_tokens=1, awaits_mask=True)]),
            "chunk of sequence 1 awaits a mask that it cannot use",
        ),
        (_plan(chunks=[pb.Chunk(sequence_id=i, num_tokens=1) for i in range(9)]), "9 chunks, more than"),
        (_plan(chunks=[pb.Chunk(sequence_id=1, num_tokens=33)]), "33 tokens, more than `max_step_tokens` (32)"),
        (_plan(chunks=[pb.Chunk(sequence_id=1, num_tokens=1)] * 2), "two chunks of one sequence"),
    ],
)
def test_an_invalid_plan_ends_the_stream_after_earlier_results(
    client: Client, backend: FakeBackend, plan: pb.StepPlan, expected: str
) -> None:
    stream = client.open()
    stream.send(first_plan())
    stream.send(plan)
    assert stream.receive().step_id == 1
    error = stream.error()
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert expected in error.details()
    wait_until(lambda: backend.num_resets == 1)
    assert client.open().step(first_plan()).step_id == 1


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (_start(token_ids=[]), "the sequence has no tokens"),
        (_start(num_prompt_tokens=0), "`num_prompt_tokens` is 0, expected 1 to 1"),
        (_start(num_prompt_tokens=2), "`num_prompt_tokens` is 2, expected 1 to 1"),
        (_start(sampling=None), "the sequence has no `sampling`"),
        (_sampling(temperature=float("nan")), "`temperature` is NaN"),
        (_sampling(temperature=100.5), "`temperature` is 100.5, expected 0 to 100"),
        (_sampling(top_p=0.0), "`top_p` is 0, expected above 0 and at most 1"),
        (_sampling(top_p=1.5), "`top_p` is 1.5"),
        (_sampling(min_p=-0.5), "`min_p` is -0.5, expected 0 to 1"),
        (_sampling(presence_penalty=2.5), "`presence_penalty` is 2.5, expected -2 to 2"),
        (_sampling(frequency_penalty=-3), "`frequency_penalty` is -3"),
        (_sampling(repetition_penalty=0.0), "`repetition_penalty` is 0, expected above 0"),
        (_sampling(repetition_penalty=float("inf")), "`repetition_penalty` is inf"),
        (_sampling(num_top_logprobs=21), "`num_top_logprobs` is 21, expected 0 to 20"),
        (_sampling(watermark=pb.Watermark(gamma=1.0, delta=2.0)), "`watermark.gamma` is 1, expected 0.00390625 to"),
        (_sampling(watermark=pb.Watermark(gamma=0.5)), "`watermark.delta` is 0, expected above 0 and at most 100"),
        (_start(root_key=b"short"), "`root_key` has 5 bytes, expected 16 or none"),
        (_sampling(allowed_tokens=b"\xff" * 9), "a mask of 9 bytes, expected 8"),
    ],
)
def test_an_invalid_start_fails_only_its_sequence(client: Client, plan: pb.StepPlan, expected: str) -> None:
    alone = client.open()
    alone.step(first_plan())
    token = alone.step(decode_plan(2, 3)).sequences[0]
    stream = client.open()
    stream.step(first_plan())
    plan.chunks.extend([pb.Chunk(sequence_id=9, num_tokens=1, new_block_ids=[5], sample=True)])
    plan.chunks.extend(decode_plan(2, 3).chunks)
    failed, sampled = stream.step(plan).sequences
    assert (failed.sequence_id, failed.error.code) == (9, pb.SEQUENCE_ERROR_CODE_INVALID_PLAN)
    assert expected in failed.error.message
    assert sampled == token
    assert stream.step(pb.StepPlan(step_id=3, ends=[9, 1])).step_id == 3


def test_a_long_error_is_cut(client: Client, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("\udcff" + "ä" * MAX_ERROR_MESSAGE_BYTES)

    monkeypatch.setattr(backend, "start", refuse)
    # The processes of pytest cannot exchange a log that is no valid text.
    monkeypatch.setattr(logging.getLogger("trunkline_server.engine"), "disabled", True)
    message = client.open().step(first_plan()).sequences[0].error.message
    assert message.startswith("the backend refused the sequence: ?ää")
    assert MAX_ERROR_MESSAGE_BYTES - 1 <= len(message.encode()) <= MAX_ERROR_MESSAGE_BYTES


def test_a_request_without_a_plan_is_an_invalid_argument(client: Client) -> None:
    stream = client.open()
    stream.send_raw(pb.StepRequest())
    assert stream.error().details() == "step request has neither `plan` nor `late_masks`"


@pytest.mark.parametrize(
    "values",
    [
        {"temperature": 0.0}, {"temperature": 100.0}, {"top_p": 1.0}, {"top_p": 2**-20}, {"min_p": 1.0},
        {"top_k": 2**32 - 1}, {"presence_penalty": -2.0}, {"frequency_penalty": 2.0}, {"repetition_penalty": 2**-10},
        {"num_top_logprobs": 20}, {"seed": 2**64 - 1}, {"end_token_ids": [VOCAB_SIZE - 1]},
    ],
)  # fmt: skip
def test_sampling_values_at_their_bounds_are_accepted(client: Client, values: dict[str, object]) -> None:
    plan = first_plan()
    plan.starts[0].sampling.CopyFrom(sampling_params(**values))
    assert client.open().step(plan).sequences[0].HasField("token")


def test_only_the_bad_sequence_fails_and_it_can_be_ended(client: Client) -> None:
    alone = client.open().step(first_plan())
    plan = first_plan()
    plan.starts.append(start(2, [VOCAB_SIZE]))
    plan.starts.append(start(3, [1], end_token_ids=[VOCAB_SIZE]))
    plan.chunks.insert(0, pb.Chunk(sequence_id=2, num_tokens=1, new_block_ids=[5], sample=True))
    plan.chunks.append(pb.Chunk(sequence_id=3, num_tokens=1, new_block_ids=[6]))
    stream = client.open()
    result = stream.step(plan)
    assert [sequence.sequence_id for sequence in result.sequences] == [2, 1, 3]
    assert result.sequences[0].error.code == pb.SEQUENCE_ERROR_CODE_INVALID_PLAN
    assert "end token id" in result.sequences[2].error.message
    assert result.sequences[1] == alone.sequences[0]
    assert stream.step(pb.StepPlan(step_id=2, ends=[2, 1, 3])).step_id == 2


def test_a_failing_backend_is_a_bug_and_ends_the_process(backend: FakeBackend, socket_folder: Path) -> None:
    class KernelPanicked(BaseException):
        pass

    def fail(_chunks: object) -> None:
        raise KernelPanicked

    backend.on_step = fail
    with serve(backend, socket_folder / "shard.sock") as shard, Client(shard.socket_path) as client:
        stream = client.open()
        stream.send(first_plan())
        assert isinstance(shard.bugs.get(timeout=DEADLINE_S), KernelPanicked)
        stream.call.cancel()


def test_stop_delivers_the_running_step_and_refuses_what_follows(
    backend: FakeBackend, gate: Gate, socket_folder: Path
) -> None:
    with serve(backend, socket_folder / "shard.sock") as shard, Client(shard.socket_path) as client:
        stream = client.open()
        stream.send(first_plan())
        assert gate.entered.wait(DEADLINE_S)
        stream.send(decode_plan(2, 3))
        stopper = threading.Thread(target=shard.loop.stop)
        stopper.start()
        gate.opened.set()
        assert stream.receive().step_id == 1
        error = stream.error()
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        stopper.join(DEADLINE_S)
        assert client.open().error().code() == grpc.StatusCode.UNAVAILABLE
