"""The engine turns a plan into backend calls and their outcomes into a result. It has no policy.

A request of the plan that is impossible for one sequence fails only that sequence. A violation of the stream's order
(step ids, unknown ends, a sequence started twice) is a `PlanError` and ends the stream.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from trunkline_server._proto.shard_pb2 import StepResult, Transfers
from trunkline_server.backends.interface import INVALID_PLAN, DraftingBackend, RunAheadBackend, failure, step_result
from trunkline_server.errors import PlanError
from trunkline_server.plan_checks import start_problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline_server._proto.shard_pb2 import AdapterLoad, Chunk, Restore, SequenceResult, SequenceStart, StepPlan
    from trunkline_server.backends.interface import Adapters, Backend, LateMasks, Store

logger = logging.getLogger(__name__)


class StepTimes(NamedTuple):
    """A step that has ended, with times of `time.perf_counter_ns`.

    free_ns: when the device was free for it; prepared_ns: when its chunks were handed to the backend.
    """

    step_id: int
    chunks: Sequence[Chunk]
    free_ns: int
    prepared_ns: int
    finished_ns: int
    device_time_us: int
    draft_time_us: int


class Observer(Protocol):
    """Sees what the engine does, in its turn, and must be quick."""

    def begun(self, restores: Sequence[Restore], chunks: Sequence[Chunk]) -> None: ...

    def finished(self, step: StepTimes) -> None: ...

    def transferred(self, transfers: Transfers) -> None: ...

    def forgotten(self) -> None: ...


@dataclass(slots=True, eq=False)
class _Begun:
    """A plan that has begun.

    prepared_ns: when its chunks were handed to the backend; result: None until the backend has returned it;
    failures: of chunks that could not run, by sequence id.
    """

    step_id: int
    chunks: Sequence[Chunk]
    began_ns: int
    prepared_ns: int
    failures: dict[int, SequenceResult]
    result: StepResult | None = None


class Engine:
    """The state of one Step stream over a backend. Not thread-safe: only the engine loop calls it."""

    def __init__(self, backend: Backend, *, vocab_size: int) -> None:
        self._backend = backend
        self._adapters: Adapters | None = None
        self._observer: Observer | None = None
        self._woken = threading.Event()
        # Checked once, because an isinstance check against a protocol takes longer than a step's bookkeeping.
        self._run_ahead_backend = backend if isinstance(backend, RunAheadBackend) else None
        self._drafting_backend = backend if isinstance(backend, DraftingBackend) else None
        self._vocab_size = vocab_size
        self._last_step_id = 0
        self._last_finished_ns = 0
        self._begun: deque[_Begun] = deque()
        # Slots of chunks that failed before reaching the backend; reported as not stored with the result of their step.
        self._unstored_slots: list[int] = []
        # Started sequences. A text is the reason why the sequence could not be started; its chunks fail with that
        # reason.
        self._sequences: dict[int, str | None] = {}

    def load_adapters_with(self, loader: Adapters) -> None:
        """Sets what loads the adapters of plans. It must `wake` this engine after each load."""
        self._adapters = loader

    def observe_with(self, observer: Observer) -> None:
        """Sets what sees steps and transfers."""
        self._observer = observer

    @property
    def num_sequences(self) -> int:
        """Number of sequences that are started and have not ended."""
        return len(self._sequences)

    def reset(self) -> None:
        """Ends transfers and forgets all sequences; the next plan is step 1 of a new stream."""
        self._backend.reset()
        if self._adapters is not None:
            self._adapters.reset()
        self._begun.clear()
        self._unstored_slots.clear()
        self._sequences.clear()
        self._last_step_id = 0
        if self._observer is not None:
            self._observer.forgotten()

    @property
    def runs_ahead(self) -> bool:
        """True if `begin` returns while the device computes; otherwise it runs the whole plan."""
        return self._run_ahead_backend is not None

    @property
    def num_begun(self) -> int:
        """Number of plans that have begun and are not finished."""
        return len(self._begun)

    def step(self, plan: StepPlan, late_masks: LateMasks | None = None) -> StepResult:
        """Runs one plan to its end. Raises PlanError if the plan does not follow from those before it.

        late_masks: where chunks with `awaits_mask` find their masks.
        """
        self.begin(plan, late_masks)
        return self.finish()

    def is_ready(self) -> bool:
        """Returns True if `finish` would not wait. A plan must have begun."""
        begun = self._begun[0]
        return begun.result is not None or self._run_ahead_backend is None or self._run_ahead_backend.is_ready()

    def finish(self) -> StepResult:
        """Waits for the oldest plan that has begun and returns its result.

        The host sees the step from the moment at which the device was free for it: a plan that began before its
        predecessor was finished waited until then.
        """
        begun = self._begun.popleft()
        result = begun.result
        if result is None:
            assert self._run_ahead_backend is not None, "only a run-ahead backend leaves results open"
            result = self._with_failures(begun, self._run_ahead_backend.finish())
        if begun.failures:
            failed = (chunk for chunk in begun.chunks if chunk.sequence_id in begun.failures)
            self._unstored_slots.extend(store.slot for chunk in failed for store in chunk.stores)
        free_ns, self._last_finished_ns = max(begun.began_ns, self._last_finished_ns), time.perf_counter_ns()
        device_time_us = self._backend.step_time_us(elapsed_us=(self._last_finished_ns - free_ns) // 1000)
        draft_time_us = 0 if self._drafting_backend is None else self._drafting_backend.draft_time_us
        result.step_id, result.device_time_us = begun.step_id, device_time_us
        result.draft_time_us = min(draft_time_us, device_time_us)
        if self._observer is not None:
            times = (free_ns, begun.prepared_ns, self._last_finished_ns, device_time_us, result.draft_time_us)
            self._observer.finished(StepTimes(begun.step_id, begun.chunks, *times))
        return result

    def begin(self, plan: StepPlan, late_masks: LateMasks | None = None) -> None:
        """Begins a plan. At most one earlier plan may be unfinished. Raises PlanError as `step` does."""
        if plan.step_id != self._last_step_id + 1:
            raise PlanError(f"step id is {plan.step_id}, expected {self._last_step_id + 1}")
        began_ns = time.perf_counter_ns()
        for sequence_id in plan.ends:
            self._end(plan.step_id, sequence_id)
        for load in plan.adapter_loads:
            self._load_adapter(plan.step_id, load)
        for start in plan.starts:
            self._start(plan.step_id, start)
        if plan.window_drops:
            self._backend.drop_window_parts(plan.window_drops)
        for copy in plan.copies:
            self._backend.copy_block(copy.source_block_id, copy.destination_block_id, copy.num_tokens)
        if plan.discards:
            self._store(plan.step_id).discard(plan.discards)
        for restore in plan.restores:
            self._store(plan.step_id).restore(restore)
        # The list keeps the messages as the same objects.
        begun = _Begun(plan.step_id, list(plan.chunks), began_ns, time.perf_counter_ns(), {})
        if self._observer is not None and self._backend.store is not None:
            self._observer.begun(plan.restores, begun.chunks)
        self._run(begun, late_masks)
        self._begun.append(begun)
        self._last_step_id = plan.step_id

    def make_late_masks(self) -> LateMasks:
        return self._backend.make_late_masks()

    def take_transfers(self) -> Transfers | None:
        """Returns outcomes of transfers that ended since the last call, or None if there are none."""
        transfers = None if self._backend.store is None else self._backend.store.take_outcomes()
        if self._unstored_slots:
            transfers = transfers or Transfers()
            for slot in self._unstored_slots:
                transfers.stores.add(slot=slot, is_stored=False)
            self._unstored_slots.clear()
        if self._observer is not None and transfers is not None:
            self._observer.transferred(transfers)
        if self._adapters is not None and (outcomes := self._adapters.take_outcomes()):
            transfers = transfers or Transfers()
            transfers.adapters.extend(outcomes)
        return transfers

    @property
    def has_transfers(self) -> bool:
        """True if `take_transfers` may ever return something."""
        return self._backend.store is not None or self._adapters is not None

    def wait_outcomes(self, timeout_s: float) -> None:
        """Waits until a transfer has ended, for the time limit, or for `wake`. May be called from any thread."""
        if self._backend.store is not None:
            self._backend.store.wait_outcomes(timeout_s)
        elif self._woken.wait(timeout_s):
            self._woken.clear()

    def wake(self) -> None:
        """Makes the current or the next `wait_outcomes` return. May be called from any thread."""
        if self._backend.store is not None:
            self._backend.store.wake()
        else:
            self._woken.set()

    def _load_adapter(self, step_id: int, load: AdapterLoad) -> None:
        if self._adapters is None:
            raise PlanError(f"step {step_id} loads an adapter, but there are no slots")
        try:
            self._adapters.begin(load)
        except ValueError as error:
            raise PlanError(f"step {step_id} loads an adapter: {error}") from error

    def _store(self, step_id: int) -> Store:
        if self._backend.store is None:
            raise PlanError(f"step {step_id} has transfers, but there is no store")
        return self._backend.store

    def _end(self, step_id: int, sequence_id: int) -> None:
        if sequence_id not in self._sequences:
            raise PlanError(f"step {step_id} ends sequence {sequence_id}, which is not started")
        if self._sequences.pop(sequence_id) is None:
            self._backend.end(sequence_id)

    def _start(self, step_id: int, start: SequenceStart) -> None:
        if start.sequence_id in self._sequences:
            raise PlanError(f"step {step_id} starts sequence {start.sequence_id}, which is started already")
        problem = start_problem(start, self._vocab_size)
        if problem is None:
            try:
                self._backend.start(start)
            # Whatever a backend refuses concerns this sequence only. A panic of the kernels is no `Exception`.
            except Exception as error:
                logger.exception("the backend refused to start sequence %d", start.sequence_id)
                problem = f"the backend refused the sequence: {error}"
        self._sequences[start.sequence_id] = problem

    def _run(self, begun: _Begun, late_masks: LateMasks | None) -> None:
        """Fails the chunks that cannot run and starts the others; results keep the order of the chunks."""
        sequences, chunks, failures = self._sequences, begun.chunks, begun.failures
        runnable = chunks
        if any(sequences.get(chunk.sequence_id, "") is not None for chunk in chunks):
            runnable = []
            for chunk in chunks:
                problem = sequences.get(chunk.sequence_id, "the sequence is not started")
                if problem is None:
                    runnable.append(chunk)
                else:
                    failures[chunk.sequence_id] = failure(chunk.sequence_id, INVALID_PLAN, problem)
        if not runnable:
            begun.result = step_result(chunks, failures)
        elif self._run_ahead_backend is not None:
            self._run_ahead_backend.begin(runnable, late_masks)
        else:
            begun.result = self._with_failures(begun, self._backend.step(runnable, late_masks))

    @staticmethod
    def _with_failures(begun: _Begun, ran: StepResult) -> StepResult:
        if not begun.failures:
            return ran
        return step_result(begun.chunks, {one.sequence_id: one for one in ran.sequences} | begun.failures)
