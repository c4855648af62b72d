"""The queues between reader, engine loop and handler: limits and ends."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from trunkline_server._proto.shard_pb2 import StepPlan, StepResponse, StepResult
from trunkline_server.backends.late_masks import LateMasks
from trunkline_server.errors import PlanError
from trunkline_server.stream import MAX_QUEUED_PLANS, MAX_QUEUED_RESPONSES, StepStream, StreamEnd

DEADLINE_S = 20.0


def result(step_id: int) -> StepResponse:
    return StepResponse(result=StepResult(step_id=step_id))


class Background:
    """Runs a call that may block on a thread; `join` returns its result."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._returned: list[object] = []
        self._thread = threading.Thread(target=lambda: self._returned.append(call()), daemon=True)
        self._thread.start()

    @property
    def is_waiting(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> object:
        self._thread.join(DEADLINE_S)
        assert not self.is_waiting, "the call still waits"
        return self._returned[0]


def full_of_plans() -> StepStream:
    stream = StepStream(LateMasks())
    for step_id in range(1, MAX_QUEUED_PLANS + 1):
        assert stream.put_plan(StepPlan(step_id=step_id))
    return stream


def test_a_full_queue_takes_the_next_plan_once_there_is_room() -> None:
    stream = full_of_plans()
    waiting = Background(lambda: stream.put_plan(StepPlan(step_id=MAX_QUEUED_PLANS + 1)))
    assert waiting.is_waiting
    taken = [stream.take_plan() for _ in range(MAX_QUEUED_PLANS + 1)]
    assert waiting.join() is True
    assert [plan.step_id for plan in taken if isinstance(plan, StepPlan)] == list(range(1, MAX_QUEUED_PLANS + 2))


@pytest.mark.parametrize(
    "end", [lambda s: s.cancel(StreamEnd.DISCONNECTED), lambda s: s.finish(), lambda s: s.end_plans()]
)
def test_every_end_wakes_a_reader_that_waits_for_room(end: Callable[[StepStream], None]) -> None:
    stream = full_of_plans()
    waiting = Background(lambda: stream.put_plan(StepPlan(step_id=99)))
    end(stream)
    assert waiting.join() is False


@pytest.mark.parametrize("end", [lambda s: s.cancel(StreamEnd.SUPERSEDED), lambda s: s.end_plans()])
def test_every_end_wakes_a_loop_that_waits_for_its_results_to_be_read(end: Callable[[StepStream], None]) -> None:
    stream = StepStream(LateMasks())
    for step_id in range(MAX_QUEUED_RESPONSES):
        stream.put_response(result(step_id))
    waiting = Background(lambda: stream.put_response(result(99)))
    assert waiting.is_waiting
    end(stream)
    waiting.join()


def test_results_before_an_error_come_first() -> None:
    stream = StepStream(LateMasks())
    stream.put_response(result(1))
    stream.fail(PlanError("wrong"))
    stream.put_response(result(2))
    assert [response.result for response in stream.responses()] == [result(1).result]
    assert (stream.end, str(stream.plan_error)) == (StreamEnd.PLAN_ERROR, "wrong")


def test_cancel_drops_plans_and_results() -> None:
    stream = full_of_plans()
    stream.put_response(result(1))
    stream.cancel(StreamEnd.SUPERSEDED)
    assert list(stream.responses()) == []
    assert stream.take_plan() is None
    assert stream.put_plan(StepPlan(step_id=1)) is False


def test_the_first_end_wins() -> None:
    stream = StepStream(LateMasks())
    stream.cancel(StreamEnd.SUPERSEDED)
    stream.cancel(StreamEnd.DISCONNECTED)
    stream.fail(PlanError("late"))
    assert (stream.end, stream.plan_error) == (StreamEnd.SUPERSEDED, None)


def test_plans_queued_before_the_side_was_closed_are_still_taken() -> None:
    stream = full_of_plans()
    stream.end_plans()
    assert [bool(stream.take_plan()) for _ in range(MAX_QUEUED_PLANS + 1)] == [True] * MAX_QUEUED_PLANS + [False]


@pytest.mark.parametrize("end", [lambda s: s.cancel(StreamEnd.DISCONNECTED), lambda s: s.end_plans()])
def test_every_end_wakes_a_step_that_waits_for_a_mask(end: Callable[[StepStream], None]) -> None:
    stream = StepStream(LateMasks())
    waiting = Background(lambda: stream.late_masks.wait(7))
    assert waiting.is_waiting
    end(stream)
    assert waiting.join() == b""
    # A mask that arrived before the end still counts.
    stream.late_masks.tell(7, b"mask")
    assert stream.late_masks.wait(7) == b"mask"
