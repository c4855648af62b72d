"""A backend whose steps run on a device: the next plan begins meanwhile, and results keep their order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import pytest
from tests.fakes.backend import VOCAB_SIZE, FakeBackend
from tests.plans import new_chunk, new_start, new_store
from trunkline_server._proto.shard_pb2 import Chunk, StepPlan, StepResult, StoreOutcome
from trunkline_server.backends.interface import LateMasks, sampling_params
from trunkline_server.engine import Engine
from trunkline_server.errors import PlanError
from trunkline_server.loop import EngineLoop

DEADLINE_S = 30.0


class DeviceBackend(FakeBackend):
    """Computes at once but returns outcomes only when the test allows it."""

    def __init__(self, *, has_store: bool = False) -> None:
        super().__init__(has_store=has_store)
        self.log: list[str] = []
        self._results: deque[StepResult] = deque()
        self.is_done = threading.Event()
        self.has_two = threading.Event()

    def begin(self, chunks: Sequence[Chunk], late_masks: LateMasks | None = None) -> None:
        self.log.append("begin")
        self._results.append(self.step(chunks, late_masks))
        if len(self._results) == 2:
            self.has_two.set()

    def is_ready(self) -> bool:
        return self.is_done.is_set()

    def finish(self) -> StepResult:
        self.log.append("finish")
        return self._results.popleft()


def plans(count: int) -> list[StepPlan]:
    start = new_start(1, [3, 1, 4], 3, sampling_params())
    first = StepPlan(step_id=1, starts=[start], chunks=[new_chunk(1, 0, 3, [0, 1, 2], True)])
    return [
        first,
        *(
            StepPlan(step_id=step_id, chunks=[new_chunk(1, step_id + 1, 1, [], True)])
            for step_id in range(2, count + 1)
        ),
    ]


def test_a_plan_begins_before_the_previous_one_is_finished() -> None:
    backend, expected = DeviceBackend(), []
    alone = Engine(FakeBackend(), vocab_size=VOCAB_SIZE)
    expected = [alone.step(plan).sequences for plan in plans(3)]
    engine = Engine(backend, vocab_size=VOCAB_SIZE)
    first, second, third = plans(3)
    engine.begin(first)
    engine.begin(second)
    assert (engine.num_begun, engine.is_ready()) == (2, False)
    results = [engine.finish()]
    engine.begin(third)
    results += [engine.finish(), engine.finish()]
    assert [result.step_id for result in results] == [1, 2, 3]
    assert [result.sequences for result in results] == expected
    assert backend.log == ["begin", "begin", "finish", "begin", "finish", "finish"]


def test_time_of_a_step_does_not_include_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now_us = 0
    monkeypatch.setattr("trunkline_server.engine.time.perf_counter_ns", lambda: now_us * 1000)
    engine = Engine(DeviceBackend(), vocab_size=VOCAB_SIZE)
    first, second, third = plans(3)
    engine.begin(first)
    now_us = 10
    engine.begin(second)
    now_us = 100
    assert engine.finish().device_time_us == 100
    now_us = 130
    assert engine.finish().device_time_us == 30, "the device was free at 100"
    now_us = 200
    engine.begin(third)
    now_us = 240
    assert engine.finish().device_time_us == 40


def test_the_device_says_how_long_it_worked() -> None:
    backend = DeviceBackend()
    engine = Engine(backend, vocab_size=VOCAB_SIZE)
    for plan, time_us in zip(plans(2), (70, 0), strict=True):
        engine.begin(plan)
        backend.time_us, backend.draft_time_us = time_us, 50
        result = engine.finish()
        assert (result.device_time_us, result.draft_time_us) == (time_us, min(50, time_us))


def test_chunks_that_cannot_run_fail_beside_those_that_do() -> None:
    engine = Engine(DeviceBackend(), vocab_size=VOCAB_SIZE)
    plan = plans(1)[0]
    engine.begin(StepPlan(step_id=1, starts=plan.starts, chunks=[new_chunk(7, 0, 1, [9], True), *plan.chunks]))
    failed, sampled = engine.finish().sequences
    assert failed.HasField("error")
    assert sampled.HasField("token")
    engine.begin(StepPlan(step_id=2, chunks=[new_chunk(7, 0, 1, [], True)]))
    assert engine.is_ready()
    (failed,) = engine.finish().sequences
    assert failed.HasField("error")


@pytest.mark.parametrize("ending", ["plans end", "a plan is wrong"])
def test_the_loop_keeps_two_in_flight_and_sends_all_results(ending: str) -> None:
    backend, bugs = DeviceBackend(), []
    loop = EngineLoop(Engine(backend, vocab_size=VOCAB_SIZE), bugs.append)
    loop.start()
    stream = loop.make_stream()
    loop.open(stream)
    for plan in plans(4):
        assert stream.put_plan(plan)
    # The device has not finished any step yet.
    assert backend.has_two.wait(DEADLINE_S)
    if ending == "plans end":
        stream.end_plans()
    else:
        stream.put_plan(PlanError("not a plan"))
    backend.is_done.set()
    results = [response.result for response in stream.responses()]
    assert [result.step_id for result in results] == [1, 2, 3, 4]
    loop.stop()
    assert bugs == []
    assert backend.log[:2] == ["begin", "begin"]


class FairLock:
    """A lock that is granted in the order of requests."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._askers: deque[object] = deque()

    def __enter__(self) -> None:
        asker = object()
        with self._changed:
            self._askers.append(asker)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._askers[0] is asker)

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._askers.popleft()
            self._changed.notify_all()

    def wait_until_asked_for(self) -> None:
        """Called by the holder; waits until another thread requests the lock."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self._askers) > 1, DEADLINE_S)


class ResolvingBackend(DeviceBackend):
    """Notices the end of a step when the next one begins, which ends the stores of the first."""

    def __init__(self, turn: FairLock) -> None:
        super().__init__(has_store=True)
        assert self.fake_store is not None
        self.fake_store.is_slow = True
        self._turn = turn

    def begin(self, chunks: Sequence[Chunk], late_masks: LateMasks | None = None) -> None:
        super().begin(chunks, late_masks)
        if len(self._results) == 2:
            assert self.fake_store is not None
            self.fake_store.end_slow_stores()
            # The requesting thread is the one that sends outcomes.
            self._turn.wait_until_asked_for()
            self.is_done.set()


def test_a_result_is_sent_before_outcomes_that_the_next_step_ends() -> None:
    turn, bugs = FairLock(), []
    backend = ResolvingBackend(turn)
    loop = EngineLoop(Engine(backend, vocab_size=VOCAB_SIZE), bugs.append)
    loop._turn = turn  # type: ignore[assignment]
    loop.start()
    stream = loop.make_stream()
    loop.open(stream)
    start = new_start(1, [3, 1, 4, 1, 5], 5, sampling_params(), bytes(16))
    stream.put_plan(StepPlan(step_id=1, starts=[start], chunks=[new_chunk(1, 0, 5, [0, 1], True, [new_store(0, 2)])]))
    stream.put_plan(StepPlan(step_id=2, chunks=[new_chunk(1, 5, 1, [], True)]))
    stream.end_plans()
    responses = list(stream.responses())
    loop.stop()
    assert bugs == []
    assert [one.result.step_id for one in responses] == [1, 2]
    assert responses[0].transfers.stores == [StoreOutcome(slot=2, is_stored=True)]
