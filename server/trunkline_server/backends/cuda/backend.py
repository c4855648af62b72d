"""Implements `Backend` on a GPU: manages sequences and steps around the runner and the sampler."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from trunkline_server._proto.shard_pb2 import (
    Chunk,
    PromptTokenLogprob,
    SampledToken,
    SequenceResult,
    SequenceStart,
    StepResult,
)
from trunkline_server.backends.cuda.adapters import DeviceAdapters
from trunkline_server.backends.cuda.departures import StepStores
from trunkline_server.backends.cuda.device import Device, Event
from trunkline_server.backends.cuda.kernels.choose import NOT_A_NUMBER
from trunkline_server.backends.cuda.kv_pool import KvPool
from trunkline_server.backends.cuda.runner import StepRunner
from trunkline_server.backends.cuda.sampling import DeviceSampler, PendingRows, RowRequest, RowResult
from trunkline_server.backends.cuda.sampling_rules import SamplingRules, mask_from_bytes
from trunkline_server.backends.cuda.sequences import RunningSequence
from trunkline_server.backends.cuda.state_pool import NO_STATES, ChunkStates, StatePool
from trunkline_server.backends.cuda.step_input import Entry
from trunkline_server.backends.cuda.tiers import TieredStore
from trunkline_server.backends.cuda.vectors import Vectors
from trunkline_server.backends.interface import (
    INVALID_PLAN,
    NOT_FINITE,
    AdapterSlots,
    BackendInfo,
    Store,
    failure,
    num_rows,
    step_result,
)
from trunkline_server.backends.interface import LateMasks as AnyLateMasks
from trunkline_server.backends.late_masks import LateMasks
from trunkline_server.backends.sequences import LogitsRows, SequenceTable, StepChunks
from trunkline_server.errors import PlanError
from trunkline_server.sampling.masks import penalties_of
from trunkline_server.sampling.sampler import NotFiniteError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trunkline_server.backends.cuda.sampling import Words

# Most steps that have begun and are not finished.
MAX_STEPS_IN_FLIGHT = 2


@dataclass(slots=True, eq=False)
class _ChunkWork:
    """A chunk of a step that has begun.

    num_tokens: known and pending tokens of its sequence before it samples; rows, first_row: its rows of logits, and the
    first of them in the step; samples: False if there is no row to sample from, or a late mask skips the sample;
    mask: the allowed tokens, for a late mask once it is known; vector: rows of which the vector of a pooled sequence is
    made; states: that it reads and writes.
    """

    chunk: Chunk
    sequence: RunningSequence
    num_tokens: int
    rows: LogitsRows
    first_row: int
    samples: bool
    states: ChunkStates
    mask: bytes = b""
    problem: str | None = None
    vector: torch.Tensor | None = None


@dataclass(slots=True, eq=False)
class _Step:
    """A step in flight.

    logits: until its samples have begun; late masks delay them. rows: the pending samples. outcomes: those known so
    far. begun, event: the points before and after its work on the device; computed, resumed: those between which late
    masks delay it, if it awaits any.
    """

    chunks: Sequence[Chunk]
    taken: StepChunks[RunningSequence]
    late_masks: LateMasks | None
    works: list[_ChunkWork] = field(default_factory=list)
    outcomes: dict[int, SequenceResult] = field(default_factory=dict)
    logits: torch.Tensor | None = None
    rows: PendingRows | None = None
    begun: Event | None = None
    computed: Event | None = None
    resumed: Event | None = None
    event: Event | None = None
    stores: StepStores | None = None
    result: StepResult | None = None

    @property
    def time_us(self) -> int:
        """Microseconds of its work on the device, which is done; 0 if it has none."""
        if self.begun is None or self.event is None:
            return 0
        delay_us = 0 if self.computed is None or self.resumed is None else self.resumed.us_since(self.computed)
        return self.event.us_since(self.begun) - delay_us


@dataclass(kw_only=True, eq=False)
class CudaBackend:
    """Implements `Backend`, including `begin` and `finish`, so that two steps may be in flight."""

    info: BackendInfo
    device: Device
    runner: StepRunner
    sampler: DeviceSampler
    pool: KvPool
    vocab_size: int
    vectors: Vectors | None
    states: StatePool | None
    tiers: TieredStore | None
    slots: DeviceAdapters | None = None

    def __post_init__(self) -> None:
        self.store: Store | None = self.tiers
        self.adapters: AdapterSlots | None = self.slots
        self._sequences: SequenceTable[RunningSequence] = SequenceTable(self.info, self.vocab_size)
        self._steps: deque[_Step] = deque()
        self._last_time_us = 0

    def after_start(self) -> None:
        pass

    def start(self, start: SequenceStart) -> None:
        sequence = RunningSequence.of(start)
        sequence.rules = SamplingRules(
            sequence.sampling, sequence.token_ids, sequence.num_prompt_tokens, self.vocab_size
        )
        if self.slots is not None:
            sequence.adapter = self.slots.begin_use(start)
        self._sequences.start(start.sequence_id, sequence)
        if self.tiers is not None:
            self.tiers.start(start.sequence_id, start.root_key)

    def end(self, sequence_id: int) -> None:
        if self.slots is not None and (sequence := self._sequences.get(sequence_id)) is not None:
            self.slots.end_use(sequence.adapter)
        self._sequences.end(sequence_id)
        if self.tiers is not None:
            self.tiers.end(sequence_id)

    def make_late_masks(self) -> LateMasks:
        return LateMasks()

    def reset(self) -> None:
        self.device.use()
        self.device.wait()
        if self.tiers is not None:
            self.tiers.reset()
        self._steps.clear()
        self._sequences.clear()
        if self.slots is not None:
            self.slots.reset()
        if self.states is not None:
            # A router that starts anew expects no block to have a state.
            self.states.drop_all()

    def drop_window_parts(self, block_ids: Sequence[int]) -> None:
        assert self.states is not None, "only states are parts of blocks"
        self.states.drop(block_ids)

    @torch.inference_mode()
    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        self.device.use()
        if self.tiers is not None:
            self.tiers.enter_copy(source_block_id, destination_block_id)
        if self.states is not None:
            self.states.copy(source_block_id, destination_block_id, num_tokens)
        self.pool.copy_block(source_block_id, destination_block_id)
        if self.tiers is not None:
            self.tiers.leave_copy()

    @property
    def num_steps_in_flight(self) -> int:
        """Number of steps that have begun and are not finished."""
        return len(self._steps)

    def step(self, chunks: Sequence[Chunk], late_masks: AnyLateMasks | None = None) -> StepResult:
        assert not self._steps, "a step is in flight"
        self.begin(chunks, late_masks)
        return self.finish()

    @torch.inference_mode()
    def begin(self, chunks: Sequence[Chunk], late_masks: AnyLateMasks | None = None) -> None:
        """Begins a step behind at most one in flight. Waits only for late masks and appended tokens that depend on that
        one.
        """
        assert len(self._steps) < MAX_STEPS_IN_FLIGHT, "too many steps in flight"
        assert late_masks is None or isinstance(late_masks, LateMasks), "late masks come from make_late_masks"
        self.device.use()
        if self.tiers is not None:
            self.tiers.check(chunks)
        before = self._steps[-1] if self._steps else None
        if before is not None:
            self._sample(before)
            if any(self._needs_tokens(chunk) for chunk in chunks):
                self._resolve(before)
        step = _Step(chunks, StepChunks(self._sequences, self.sampler.max_rows), late_masks)
        self._steps.append(step)
        for chunk in chunks:
            self._accept(chunk, step)
        if step.works:
            step.begun = self.device.steps.mark(timed=True)
            step.logits = self._run([self._entry(work) for work in step.works])
            self._take_vectors(step)
        if self.tiers is not None:
            computed = {id(work.chunk): work.sequence for work in step.works}
            stored = [(chunk, computed.get(id(chunk))) for chunk in chunks if chunk.stores]
            step.stores = self.tiers.begin_stores(stored)
        if not step.works:
            return
        if any(self._awaits_mask(work) for work in step.works):
            step.computed = self.device.steps.mark(timed=True)
        else:
            self._sample(step)

    def _run(self, entries: Sequence[Entry]) -> torch.Tensor:
        return self.runner.run(entries) if self.tiers is None else self.tiers.run(self.runner, entries)

    def is_ready(self) -> bool:
        step = self._steps[0]
        if step.result is not None or not step.works:
            return True
        if step.event is None and self._has_masks(step):
            with torch.inference_mode():
                self.device.use()
                self._sample(step)
        return step.event is not None and step.event.is_reached()

    @torch.inference_mode()
    def finish(self) -> StepResult:
        """Waits for the oldest step in flight and returns its result."""
        self.device.use()
        step = self._steps[0]
        result = self._resolve(step)
        self._steps.popleft()
        self._last_time_us = step.time_us
        return result

    def step_time_us(self, *, elapsed_us: int) -> int:
        return self._last_time_us

    @torch.inference_mode()
    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        self._sequences.check_score(len(token_ids))
        self.device.use()
        pieces = []
        most = min(self.sampler.max_rows, self.info.max_step_tokens)
        for first in range(0, len(token_ids), most):
            tokens = token_ids[first : first + most]
            block_ids = range(-(-(first + len(tokens)) // self.info.block_size))
            states = NO_STATES if self.states is None else self.states.admit(first, len(tokens), block_ids)
            logits = self._run([Entry(tokens, first, block_ids, range(len(tokens)), states)])
            if self.states is not None:
                self.states.drop(block_ids[:-1])
            self.device.wait()
            pieces.append(logits[: len(tokens)].cpu().numpy().copy())
        if self.states is not None:
            self.states.drop_all()
        return np.concatenate(pieces)

    def _needs_tokens(self, chunk: Chunk) -> bool:
        """Returns True if the chunk has tokens or drafts behind pending ones, which the host must then read first."""
        sequence = self._sequences.get(chunk.sequence_id)
        has_tokens = len(chunk.appended_token_ids) > 0 or len(chunk.draft_token_ids) > 0
        return sequence is not None and sequence.num_pending > 0 and has_tokens

    def _accept(self, chunk: Chunk, step: _Step) -> None:
        self._sequences.append(chunk.sequence_id, chunk.appended_token_ids)
        problem, states = step.taken.take(chunk), NO_STATES
        if problem is None and self.states is not None:
            block_ids = self._sequences[chunk.sequence_id].block_ids
            try:
                states = self.states.admit(chunk.first_position, chunk.num_tokens, block_ids)
            except PlanError as error:
                problem = str(error)
        if problem is not None:
            step.outcomes[chunk.sequence_id] = failure(chunk.sequence_id, INVALID_PLAN, problem)
            return
        sequence = self._sequences[chunk.sequence_id]
        rows, before = sequence.rows(chunk), step.works[-1] if step.works else None
        step.works.append(
            _ChunkWork(
                chunk, sequence, sequence.num_tokens, rows,
                first_row=0 if before is None else before.first_row + len(before.rows),
                samples=rows.num_samples > 0 and sequence.pool is None, states=states, mask=chunk.allowed_tokens,
            )
        )  # fmt: skip
        sequence.num_computed = chunk.first_position + chunk.num_tokens

    def _take_vectors(self, step: _Step) -> None:
        """Copies what the vectors of a step are made of, before another step overwrites it."""
        first_token = 0
        for work in step.works:
            if work.sequence.pool is not None:
                assert self.vectors is not None, "the router asks for vectors only where there are some"
                work.vector = self.vectors.take(first_token, work.first_row, work.chunk)
            first_token += num_rows(work.chunk)

    def _entry(self, work: _ChunkWork) -> Entry:
        chunk, sequence = work.chunk, work.sequence
        end = chunk.first_position + chunk.num_tokens
        tokens = sequence.token_ids[chunk.first_position : end]
        tokens += [-1 - sequence.pending_row] * (chunk.num_tokens - len(tokens))
        tokens += chunk.draft_token_ids
        rows = work.rows.offsets(chunk.num_tokens)
        if sequence.pool is not None and self.vectors is not None and self.vectors.pooling.kind == "first":
            rows = [0] * len(rows)
        return Entry(
            tokens, chunk.first_position, sequence.block_ids, rows, work.states, second_text=sequence.pool or 0,
            adapter=sequence.adapter,
        )  # fmt: skip

    @staticmethod
    def _awaits_mask(work: _ChunkWork) -> bool:
        return work.chunk.awaits_mask and work.samples

    def _has_masks(self, step: _Step) -> bool:
        """Returns True if no late mask of a step is missing."""
        for work in step.works:
            if self._awaits_mask(work):
                assert step.late_masks is not None, "a chunk awaits its mask somewhere"
                if not step.late_masks.has(work.chunk.sequence_id):
                    return False
        return True

    def _sample(self, step: _Step) -> None:
        """Begins the step's samples if they have not begun; waits for late masks first."""
        if step.logits is None or step.event is not None:
            return
        for work in step.works:
            if self._awaits_mask(work):
                assert step.late_masks is not None, "a chunk awaits its mask somewhere"
                work.mask = step.late_masks.wait(work.chunk.sequence_id)
                work.problem = self._sequences.mask_problem(work.mask)
                work.samples = bool(work.mask) and work.problem is None
        if step.computed is not None:
            step.resumed = self.device.steps.mark(timed=True)
        requests = [request for work in step.works for request in self._requests(work)]
        if requests and (self.vectors is None or self.vectors.generates):
            step.rows = self.sampler.launch(step.logits, requests)
        step.event = self.device.steps.mark(timed=True)
        step.logits = None
        for work in step.works:
            if work.samples:
                work.sequence.num_pending += 1
                work.sequence.pending_row = work.first_row + work.rows.num_scored

    def _requests(self, work: _ChunkWork) -> list[RowRequest]:
        """Returns requests for the rows of logits of a chunk, in order, including rows whose sample is skipped."""
        chunk, sequence, rules = work.chunk, work.sequence, work.sequence.rules
        requests = [
            RowRequest(
                target=sequence.token_ids[chunk.first_position + index + 1], num_top=rules.num_top_prompt_logprobs
            )
            for index in range(work.rows.num_scored)
        ]
        masks = [b"" if work.problem is not None else work.mask, *chunk.draft_masks]
        num_known = len(sequence.token_ids)
        for index in range(work.rows.num_samples):
            drafts = chunk.draft_token_ids[:index]
            position = work.num_tokens + index
            requests.append(
                RowRequest(
                    rules=rules,
                    num_top=rules.num_top_logprobs,
                    wants_logprob=rules.wants_logprob,
                    position=position,
                    num_output=position - sequence.num_prompt_tokens,
                    last_token=drafts[-1] if drafts else sequence.token_ids[-1],
                    pending_row=sequence.pending_row if work.num_tokens > num_known else -1,
                    mask=self._mask(sequence, masks[index] if index < len(masks) else b""),
                    penalties=penalties_of(masks[index] if index < len(masks) else b"", self.vocab_size),
                    drafts=drafts,
                )
            )
        return requests

    def _mask(self, sequence: RunningSequence, mask: bytes) -> Words | None:
        """Returns what a mask and the sequence's parameters allow together; None if they allow all tokens."""
        words = mask_from_bytes(mask, self.vocab_size) if mask else None
        allowed = sequence.rules.allowed
        return allowed if words is None else words if allowed is None else words & allowed

    def _resolve(self, step: _Step) -> StepResult:
        """Waits for a step and returns its result. The first call appends sampled tokens; later calls return the same
        result.
        """
        if step.result is None:
            self._sample(step)
            if step.event is not None:
                step.event.wait()
            rows = [] if step.rows is None else step.rows.read()
            for work in step.works:
                outcome = self._outcome(work, rows)
                if outcome is not None:
                    step.outcomes[work.chunk.sequence_id] = outcome
            outcomes = step.outcomes
            if self.tiers is not None and step.stores is not None:
                failed = {one.sequence_id for one in outcomes.values() if one.HasField("error")}
                self.tiers.end_stores(step.stores, failed)
            step.result = step_result(step.chunks, outcomes)
        return step.result

    def _outcome(self, work: _ChunkWork, rows: Sequence[RowResult]) -> SequenceResult | None:
        sequence_id, sequence = work.chunk.sequence_id, work.sequence
        if sequence.pool is not None:
            assert self.vectors is not None, "the sequence is pooled"
            return self.vectors.outcome(sequence, work.chunk, work.vector)
        sequence.num_pending -= work.samples
        if work.problem is not None:
            return failure(sequence_id, INVALID_PLAN, work.problem)
        scored = rows[work.first_row : work.first_row + work.rows.num_scored]
        for row in scored:
            if row.token_id < 0:
                return _not_finite(sequence_id, row.token_id)
        scores = [PromptTokenLogprob(logprob=row.logprob, rank=row.rank, top_logprobs=row.top) for row in scored]
        if not work.samples:
            return SequenceResult(sequence_id=sequence_id, scores=scores) if work.chunk.score else None
        if len(sequence.token_ids) != work.num_tokens:
            # The step before sampled nothing, as its outcome said.
            return failure(
                sequence_id, INVALID_PLAN, f"the chunk samples after position {work.num_tokens - 1}, but "
                f"{len(sequence.token_ids)} tokens are known",
            )  # fmt: skip
        first_sample = work.first_row + work.rows.num_scored
        samples = rows[first_sample : first_sample + work.rows.num_samples]
        if samples[0].token_id < 0:
            return _not_finite(sequence_id, samples[0].token_id)
        first, *rows_behind = _take_samples(sequence, samples, work.chunk.draft_token_ids)
        outcome = SequenceResult(sequence_id=sequence_id, scores=scores)
        _fill_token(outcome.token, first, sequence.rules)
        for row in rows_behind:
            _fill_token(outcome.more_tokens.add(), row, sequence.rules)
        return outcome


def _take_samples(
    sequence: RunningSequence, samples: Sequence[RowResult], drafts: Sequence[int]
) -> Sequence[RowResult]:
    """Appends the samples that count to the sequence and returns them: those up to the first that is not its draft."""
    num_taken = 0
    for row in samples:
        # Without a sample behind it, a right draft is computed again, and the next step reports the failure.
        if row.token_id < 0:
            break
        sequence.take(row.token_id)
        num_taken += 1
        if num_taken > len(drafts) or row.token_id != drafts[num_taken - 1]:
            break
    assert sequence.num_computed is not None, "the chunk has been computed"
    # The positions of right drafts hold what their tokens would have written.
    sequence.num_computed += num_taken - 1
    return samples[:num_taken]


def _fill_token(token: SampledToken, row: RowResult, rules: SamplingRules) -> None:
    token.token_id = row.token_id
    if rules.wants_logprob or rules.num_top_logprobs > 0:
        token.logprob = row.logprob
        token.top_logprobs.extend(row.top)


def _not_finite(sequence_id: int, what: int) -> SequenceResult:
    return failure(sequence_id, NOT_FINITE, str(NotFiniteError(is_nan=what == NOT_A_NUMBER)))
