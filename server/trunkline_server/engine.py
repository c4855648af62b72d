"""The engine: a plan becomes backend calls becomes a result. It has no policy.

What a plan asks of one sequence and cannot be done fails that sequence alone; what breaks the order of the stream
(step ids, unknown ends, a sequence started twice) is a `PlanError` and ends the stream.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from trunkline_server.backends.interface import Chunk, Sampled, SequenceFailure
from trunkline_server.errors import PlanError
from trunkline_server.plan import SequenceStart, StepPlan, StepResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline_server.backends.interface import Backend, Store, Transfers


class Engine:
    """One stream's worth of state over a backend. Not thread-safe: the engine loop is its only caller."""

    def __init__(self, backend: Backend, *, vocab_size: int) -> None:
        self._backend = backend
        self._vocab_size = vocab_size
        self._last_step_id = 0
        # Started sequences; the text says why a sequence could not be started, and its chunks fail with it.
        self._sequences: dict[int, str | None] = {}

    @property
    def num_sequences(self) -> int:
        """How many sequences are started and not ended."""
        return len(self._sequences)

    def reset(self) -> None:
        """Ends transfers and forgets all sequences; the next plan is step 1 of a new stream."""
        self._backend.reset()
        self._sequences.clear()
        self._last_step_id = 0

    def step(self, plan: StepPlan) -> StepResult:
        """Does one plan. Raises PlanError if the plan does not follow from those before it."""
        if plan.step_id != self._last_step_id + 1:
            raise PlanError(f"step id is {plan.step_id}, expected {self._last_step_id + 1}")
        began_ns = time.perf_counter_ns()
        for sequence_id in plan.ends:
            self._end(plan.step_id, sequence_id)
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
        outcomes = self._run(plan.chunks) if plan.chunks else []
        self._last_step_id = plan.step_id
        return StepResult(plan.step_id, outcomes, (time.perf_counter_ns() - began_ns) // 1000)

    def take_transfers(self) -> Transfers | None:
        """What became of transfers since the last call; None if there is nothing to tell."""
        return None if self._backend.store is None else self._backend.store.take_outcomes()

    @property
    def store(self) -> Store | None:
        """The backend's store: who waits for outcomes calls it."""
        return self._backend.store

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
        problem = None
        if max(start.token_ids) >= self._vocab_size:
            problem = f"a token id is not below the vocabulary size {self._vocab_size}"
        elif max(start.sampling.end_token_ids, default=0) >= self._vocab_size:
            problem = f"an end token id is not below the vocabulary size {self._vocab_size}"
        elif max(start.sampling.allowed_token_ids, default=0) >= self._vocab_size:
            problem = f"an allowed token id is not below the vocabulary size {self._vocab_size}"
        elif max((token_id for token_id, _ in start.sampling.logit_bias), default=0) >= self._vocab_size:
            problem = f"a biased token id is not below the vocabulary size {self._vocab_size}"
        self._sequences[start.sequence_id] = problem
        if problem is None:
            self._backend.start(
                start.sequence_id, start.token_ids, start.num_prompt_tokens, start.sampling, start.root_key
            )

    def _run(self, chunks: Sequence[Chunk]) -> list[Sampled | SequenceFailure]:
        sequences = self._sequences
        if all(sequences.get(chunk.sequence_id, "") is None for chunk in chunks):
            return self._backend.step(chunks)
        # The rare way: some chunks cannot run. The results keep the order of the chunks.
        outcomes: dict[int, Sampled | SequenceFailure] = {}
        runnable = []
        for chunk in chunks:
            problem = sequences.get(chunk.sequence_id, "the sequence is not started")
            if problem is None:
                runnable.append(chunk)
            else:
                outcomes[chunk.sequence_id] = SequenceFailure(chunk.sequence_id, "invalid_plan", problem)
        if runnable:
            outcomes.update((outcome.sequence_id, outcome) for outcome in self._backend.step(runnable))
        return [outcomes[chunk.sequence_id] for chunk in chunks if chunk.sequence_id in outcomes]
