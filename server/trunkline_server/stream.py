"""One open Step stream, shared by three threads: reader (plans in), engine loop, handler (responses out)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from enum import Enum, auto

from trunkline_server._proto.shard_pb2 import StepPlan, StepResponse
from trunkline_server.backends.interface import LateMasks
from trunkline_server.errors import PlanError

# The router keeps two plans in flight. Beyond this limit the reader waits, and gRPC's flow control stops the router.
MAX_QUEUED_PLANS = 4
# Responses that the router has not read yet. Beyond this limit the engine loop waits.
MAX_QUEUED_RESPONSES = 16


class StreamEnd(Enum):
    """The reason why a stream ended."""

    # The router closed its side, and every plan was answered.
    FINISHED = auto()
    # A plan broke the contract; `StepStream.plan_error` is the error.
    PLAN_ERROR = auto()
    # The router is gone, so responses have no reader.
    DISCONNECTED = auto()
    # A newer Step stream replaced this one.
    SUPERSEDED = auto()
    # The shard is stopping.
    STOPPED = auto()


class StepStream:
    """A queue of plans and a queue of responses, both bounded, that end together.

    An orderly end (`end_plans`, `fail`, `finish`) delivers what is queued before it; `cancel` drops it. The first end
    wins. All methods are thread-safe.
    """

    def __init__(self, late_masks: LateMasks) -> None:
        lock = threading.Lock()
        self._plan_queued = threading.Condition(lock)
        self._plan_taken = threading.Condition(lock)
        self._response_queued = threading.Condition(lock)
        self._response_taken = threading.Condition(lock)
        self._lock = lock
        self._plans: deque[StepPlan | PlanError] = deque()
        self._responses: deque[StepResponse] = deque()
        self._plans_ended = False
        self._end: StreamEnd | None = None
        self.plan_error: PlanError | None = None
        # Closed when the plans end, so that the running step stops waiting for masks.
        self.late_masks = late_masks

    @property
    def end(self) -> StreamEnd | None:
        """The reason why the stream ended; None while it is open."""
        return self._end

    @property
    def takes_no_plans(self) -> bool:
        """True if no plan follows: the stream has ended, or its plans have ended and all were taken."""
        return self._end is not None or (self._plans_ended and not self._plans)

    def put_plan(self, plan: StepPlan | PlanError) -> bool:
        """Queues a plan, or the error found in its place; waits while the queue is full.

        Returns False if the stream takes no more plans.
        """
        with self._lock:
            while len(self._plans) >= MAX_QUEUED_PLANS and self._takes_plans():
                self._plan_taken.wait()
            if not self._takes_plans():
                return False
            self._plans.append(plan)
            self._plan_queued.notify()
            return True

    def end_plans(self) -> None:
        """Marks the end of the plans: the router closed its side, or the shard is stopping."""
        with self._lock:
            self._plans_ended = True
            self.late_masks.close()
            for condition in (self._plan_queued, self._plan_taken, self._response_taken):
                condition.notify_all()

    def take_queued_plan(self, timeout_s: float) -> StepPlan | PlanError | None:
        """Returns the next plan; None if none is queued within `timeout_s`, or none follows."""
        with self._lock:
            if self._end is None and not self._plans and not self._plans_ended:
                self._plan_queued.wait(timeout_s)
            if self._end is not None or not self._plans:
                return None
            self._plan_taken.notify()
            return self._plans.popleft()

    def take_plan(self) -> StepPlan | PlanError | None:
        """Waits for the next plan and returns it; None if no plan follows or the stream has ended."""
        with self._lock:
            while True:
                if self._end is not None:
                    return None
                if self._plans:
                    self._plan_taken.notify()
                    return self._plans.popleft()
                if self._plans_ended:
                    return None
                self._plan_queued.wait()

    def put_response(self, response: StepResponse) -> None:
        """Queues a response; waits while the queue is full and plans may follow. Dropped if the stream has ended."""
        with self._lock:
            # Does not wait once the plans have ended: the remaining responses are bounded, and a router that reads
            # nothing must not keep the shard from stopping.
            while len(self._responses) >= MAX_QUEUED_RESPONSES and self._takes_plans():
                self._response_taken.wait()
            if self._end is None:
                self._responses.append(response)
                self._response_queued.notify()

    def responses(self) -> Iterator[StepResponse]:
        """Yields responses until the stream ends; `end` then has the reason."""
        while True:
            with self._lock:
                while not self._responses:
                    if self._end is not None:
                        return
                    self._response_queued.wait()
                response = self._responses.popleft()
                self._response_taken.notify()
            yield response

    def finish(self, end: StreamEnd = StreamEnd.FINISHED) -> None:
        """Ends the stream after the responses queued so far."""
        with self._lock:
            self._finish(end)

    def fail(self, error: PlanError) -> None:
        """Ends the stream because of a router error, after the responses queued so far."""
        with self._lock:
            if self._end is None:
                self.plan_error = error
            self._finish(StreamEnd.PLAN_ERROR)

    def cancel(self, end: StreamEnd) -> None:
        """Ends the stream at once; queued plans and responses are dropped."""
        with self._lock:
            if self._end is None:
                self._responses.clear()
            self._finish(end)

    def _takes_plans(self) -> bool:
        return self._end is None and not self._plans_ended

    def _finish(self, end: StreamEnd) -> None:
        if self._end is not None:
            return
        self._end = end
        self._plans.clear()
        self.late_masks.close()
        for condition in (self._plan_queued, self._plan_taken, self._response_queued, self._response_taken):
            condition.notify_all()
