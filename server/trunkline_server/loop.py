"""The engine loop: the one thread that calls the backend, separate from gRPC's threads."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from trunkline_server._proto.shard_pb2 import StepPlan, StepResponse
from trunkline_server.engine import Engine
from trunkline_server.errors import PlanError
from trunkline_server.stream import StepStream, StreamEnd

# Longest single wait for a transfer's outcome; the wait is then repeated, so no outcome is missed.
OUTCOME_WAIT_S = 60.0
# Interval at which the loop checks for the end of a running step while it waits for the next plan.
RUN_AHEAD_POLL_S = 0.0002

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StepActivity:
    """The loop's state, as `Health` reports it."""

    last_step_id: int
    last_step_age_ms: int
    step_running: bool
    step_running_ms: int


class EngineLoop:
    """Serves one Step stream at a time: takes a plan, runs it and queues the result.

    on_bug: called from the loop's thread with an exception that no plan can cause; it must end the process.
    """

    def __init__(self, engine: Engine, on_bug: Callable[[BaseException], None]) -> None:
        self._engine = engine
        self._on_bug = on_bug
        self._stream_opened = threading.Condition()
        self._stream: StepStream | None = None
        self._next_stream: StepStream | None = None
        self._stopping = False
        # (last step id, when it finished in ns or 0, when the running step began in ns or 0). Replaced as a whole, so
        # any thread can read it without a lock.
        self._activity = (0, 0, 0)
        # Held while the engine works, so that outcomes of a step's transfers are never sent before its result.
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="engine-loop", daemon=True)
        self._outcomes_thread = threading.Thread(target=self._send_outcomes, name="outcomes", daemon=True)

    def start(self) -> None:
        """Starts the loop's thread, and the thread for transfer outcomes if there are transfers."""
        self._thread.start()
        if self._engine.has_transfers:
            self._outcomes_thread.start()

    def make_stream(self) -> StepStream:
        """Makes a stream to pass to `open`."""
        return StepStream(self._engine.make_late_masks())

    def open(self, stream: StepStream) -> None:
        """Hands the loop a new stream. An earlier stream ends now, and the result of its running step is dropped."""
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
        """Lets the running step finish, queues its result, takes no further plan, and joins the loop's threads."""
        self.stop_taking_plans()
        self._thread.join()
        if self._engine.has_transfers:
            self._engine.wake()
            self._outcomes_thread.join()

    def stop_taking_plans(self) -> None:
        """Makes the running step the last one, without waiting for it. This is the first half of `stop`."""
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
        """Returns the loop's state without waiting. May be called from any thread."""
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
        # BaseException, because a panic in the kernels derives from it.
        except BaseException as bug:
            step = f"step {plan.step_id}, {len(plan.chunks)} chunks" if isinstance(plan, StepPlan) else "between steps"
            # A failing disk is no bug, and the message says everything.
            if isinstance(bug, OSError):
                logger.critical("the shard restarts (%s, %d sequences): %s", step, self._engine.num_sequences, bug)
                logger.debug("where it failed", exc_info=bug)
            else:
                logger.critical("engine loop failed (%s, %d sequences)", step, self._engine.num_sequences, exc_info=bug)
            self._on_bug(bug)

    def _next(self) -> StepStream | None:
        with self._stream_opened:
            self._stream = None
            while self._next_stream is None and not self._stopping:
                self._stream_opened.wait()
            self._stream, self._next_stream = self._next_stream, None
            return self._stream

    def _take(self, stream: StepStream) -> StepPlan | PlanError | None:
        """Returns the next plan; meanwhile sends the results of steps that finish."""
        # A plan still queued when the shard stops is not run; only steps that have begun are finished.
        while self._engine.num_begun and not self._stopping:
            if self._engine.is_ready():
                self._finish(stream)
            elif (plan := stream.take_queued_plan(RUN_AHEAD_POLL_S)) is not None or stream.takes_no_plans:
                return plan
        return None if self._stopping else stream.take_plan()

    def _step(self, stream: StepStream, plan: StepPlan) -> None:
        """Runs a plan. A run-ahead backend only begins it; the plan before it is then finished."""
        last_step_id, finished_ns, began_ns = self._activity
        self._activity = (last_step_id, finished_ns, began_ns or time.monotonic_ns())
        with self._turn:
            failed = None
            try:
                self._engine.begin(plan, stream.late_masks)
            except PlanError as error:
                failed = error
            else:
                # In the same turn, because beginning this step may have ended stores of the one before.
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
        """Waits for the oldest step that has begun and sends its result."""
        with self._turn:
            self._send_result(stream)

    def _send_result(self, stream: StepStream) -> None:
        result = self._engine.finish()
        now_ns = time.monotonic_ns()
        self._activity = (result.step_id, now_ns, now_ns if self._engine.num_begun else 0)
        stream.put_response(StepResponse(result=result, transfers=self._engine.take_transfers()))

    def _send_outcomes(self) -> None:
        """Sends outcomes of transfers that end while no step runs or that outlast their step."""
        try:
            while not self._stopping:
                self._engine.wait_outcomes(OUTCOME_WAIT_S)
                with self._turn:
                    stream, transfers = self._stream, self._engine.take_transfers()
                    if stream is not None and transfers is not None:
                        stream.put_response(StepResponse(transfers=transfers))
        except BaseException as bug:
            logger.critical("sending transfer outcomes failed", exc_info=bug)
            self._on_bug(bug)
