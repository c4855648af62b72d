"""The engine loop: the one thread that calls the backend, apart from gRPC's threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trunkline_server.engine import Engine
from trunkline_server.errors import PlanError
from trunkline_server.plan import StepPlan, StepResponse
from trunkline_server.stream import StepStream, StreamEnd

# Longest wait for an outcome of a transfer; none is missed when it is over.
OUTCOME_WAIT_S = 60.0
# How often it is looked whether a step is over, while the next plan is waited for too.
RUN_AHEAD_POLL_S = 0.0002

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepActivity:
    """What the loop is doing, as `Health` reports it."""

    last_step_id: int
    last_step_age_ms: int
    step_running: bool
    step_running_ms: int


class EngineLoop:
    """Serves one Step stream at a time: take a plan, do it, queue the result.

    `on_bug` is called, from the loop's thread, with an exception that no plan may cause; it must end the process.
    """

    def __init__(self, engine: Engine, on_bug: Callable[[BaseException], None]) -> None:
        self._engine = engine
        self._on_bug = on_bug
        self._stream_opened = threading.Condition()
        self._stream: StepStream | None = None
        self._next_stream: StepStream | None = None
        self._stopping = False
        # (last step id, when it finished in ns or 0, when the running step began in ns or 0); replaced as a whole, so
        # that any thread reads it without a lock.
        self._activity = (0, 0, 0)
        # Held while the engine does something: outcomes of a step's transfers are not sent before its result.
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._outcomes_thread = threading.Thread(target=self._send_outcomes, name="outcomes", daemon=True)

    def start(self) -> None:
        """Starts the loop's thread."""
        self._thread.start()
        if self._engine.store is not None:
            self._outcomes_thread.start()

    def make_stream(self) -> StepStream:
        """A stream for `open`."""
        return StepStream(self._engine.make_late_masks())

    def open(self, stream: StepStream) -> None:
        """Hands the loop a new stream; the one before it, if any, ends now and its running step's result is dropped."""
        with self._stream_opened:
            for older in (self._stream, self._next_stream):
                if older is not None:
                    older.cancel(StreamEnd.SUPERSEDED)
            if self._stopping:
                stream.cancel(StreamEnd.STOPPED)
                return
            self._next_stream = stream
            self._stream_opened.notify()

    def stop(self) -> None:
        """Lets the running step finish, queues its result, takes no other plan, and ends the loop's thread."""
        self.stop_taking_plans()
        self._thread.join()
        if (store := self._engine.store) is not None:
            store.wake()
            self._outcomes_thread.join()

    def stop_taking_plans(self) -> None:
        """The first half of `stop`: the step that runs now is the last. Does not wait for it."""
        with self._stream_opened:
            self._stopping = True
            stream = self._stream
            if self._next_stream is not None:
                self._next_stream.cancel(StreamEnd.STOPPED)
                self._next_stream = None
            self._stream_opened.notify()
        if stream is not None:
            stream.end_plans()

    def activity(self) -> StepActivity:
        """What the loop is doing now. Never waits."""
        last_step_id, finished_ns, began_ns = self._activity
        now_ns = time.monotonic_ns()
        return StepActivity(
            last_step_id,
            (now_ns - finished_ns) // 1_000_000 if finished_ns else 0,
            began_ns != 0,
            (now_ns - began_ns) // 1_000_000 if began_ns else 0,
        )

    def _run(self) -> None:
        plan: StepPlan | PlanError | None = None
        try:
            while (stream := self._next()) is not None:
                while (plan := self._take(stream)) is not None:
                    if isinstance(plan, PlanError):
                        self._finish_begun(stream)
                        stream.fail(plan)
                    else:
                        self._step(stream, plan)
                self._finish_begun(stream)
                stream.finish(StreamEnd.STOPPED if self._stopping else StreamEnd.FINISHED)
                with self._turn:
                    self._engine.reset()
        # Also what is no Exception: a panic in the kernels derives from BaseException.
        except BaseException as bug:
            step = f"step {plan.step_id}, {len(plan.chunks)} chunks" if isinstance(plan, StepPlan) else "between steps"
            logger.critical("the engine loop failed (%s, %d sequences)", step, self._engine.num_sequences, exc_info=bug)
            self._on_bug(bug)

    def _next(self) -> StepStream | None:
        with self._stream_opened:
            self._stream = None
            while self._next_stream is None and not self._stopping:
                self._stream_opened.wait()
            self._stream, self._next_stream = self._next_stream, None
            return self._stream

    def _take(self, stream: StepStream) -> StepPlan | PlanError | None:
        """The next plan; results of steps that are over meanwhile are sent."""
        # A plan that is queued when the shard stops stays undone: only what was begun is finished.
        while self._engine.num_begun and not self._stopping:
            if self._engine.is_ready():
                self._finish(stream)
            elif (plan := stream.take_queued_plan(RUN_AHEAD_POLL_S)) is not None or stream.takes_no_plans:
                return plan
        return None if self._stopping else stream.take_plan()

    def _step(self, stream: StepStream, plan: StepPlan) -> None:
        """Does a plan; where the device computes beside, begins it and finishes the one before."""
        last_step_id, finished_ns, began_ns = self._activity
        self._activity = (last_step_id, finished_ns, began_ns or time.monotonic_ns())
        with self._turn:
            failed = None
            try:
                self._engine.begin(plan)
            except PlanError as error:
                failed = error
            else:
                # In the same turn: to begin this step may have ended stores of the one before.
                while self._engine.num_begun > (1 if self._engine.runs_ahead else 0):
                    self._send_result(stream)
        if failed is not None:
            self._finish_begun(stream)
            self._activity = (self._activity[0], self._activity[1], 0)
            stream.fail(failed)

    def _finish_begun(self, stream: StepStream) -> None:
        while self._engine.num_begun:
            self._finish(stream)

    def _finish(self, stream: StepStream) -> None:
        """Waits for the oldest step that was begun, and sends its result."""
        with self._turn:
            self._send_result(stream)

    def _send_result(self, stream: StepStream) -> None:
        result = self._engine.finish()
        now_ns = time.monotonic_ns()
        self._activity = (result.step_id, now_ns, now_ns if self._engine.num_begun else 0)
        stream.put_response(StepResponse(result, self._engine.take_transfers()))

    def _send_outcomes(self) -> None:
        """Sends what became of transfers when no step runs, or of those that took longer than their step."""
        store = self._engine.store
        assert store is not None
        try:
            while not self._stopping:
                store.wait_outcomes(OUTCOME_WAIT_S)
                with self._turn:
                    stream, transfers = self._stream, self._engine.take_transfers()
                    if stream is not None and transfers is not None:
                        stream.put_response(StepResponse(None, transfers))
        except BaseException as bug:
            logger.critical("sending outcomes failed", exc_info=bug)
            self._on_bug(bug)
