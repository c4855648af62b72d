"""The part of a backend on torch that does not depend on how logits are computed: sequences, chunks and sampling."""

from __future__ import annotations

import time
from collections.abc import Sequence
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
from trunkline_server.backends.interface import (
    INVALID_PLAN,
    NOT_FINITE,
    AdapterSlots,
    BackendInfo,
    Store,
    failure,
    step_result,
)
from trunkline_server.backends.interface import LateMasks as AnyLateMasks
from trunkline_server.backends.late_masks import LateMasks
from trunkline_server.backends.reference.adapters import TorchAdapters
from trunkline_server.backends.reference.kv_pool import Blocks
from trunkline_server.backends.reference.ops import Adapter, ChunkRows, Step
from trunkline_server.backends.sequences import (
    LogitsRows,
    RunningSequence,
    SequenceTable,
    StepChunks,
    vector_outcome,
)
from trunkline_server.models.pooling import Pooling
from trunkline_server.sampling.sampler import NotFiniteError, check_finite, choose_token, log_softmax, top_logprobs

if TYPE_CHECKING:
    from numpy.typing import NDArray


class StepBackend:
    """Implements `Backend` over `_run`, which computes the logits of a step.

    pooling: how the model makes vectors; None: it makes none.
    """

    def __init__(self, info: BackendInfo, pool: Blocks, vocab_size: int, pooling: Pooling | None = None) -> None:
        self.info = info
        self.store: Store | None = None
        self.adapters: AdapterSlots | None = None
        self._pool = pool
        self._pooling = pooling
        # The rows of the last step from which vectors are made, [T, N]; `_run` sets them if there is pooling.
        self._output: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._sequences: SequenceTable[RunningSequence] = SequenceTable(info, vocab_size)
        # The time in which the last step waited for late masks.
        self._waited_ns = 0

    def _run(self, step: Step) -> NDArray[np.float32]:
        """Computes a step, writes its K and V to the pool, and returns the logits of `sampling_rows`, [S, V]."""
        raise NotImplementedError

    def after_start(self) -> None:
        pass

    def start(self, start: SequenceStart) -> None:
        sequence = RunningSequence.of(start)
        if start.adapter_slot:
            if not isinstance(self.adapters, TorchAdapters):
                raise ValueError("this backend takes no adapters")
            sequence.adapter = self.adapters.used_by(start)
        self._sequences.start(start.sequence_id, sequence)

    def end(self, sequence_id: int) -> None:
        self._sequences.end(sequence_id)

    def make_late_masks(self) -> LateMasks:
        return LateMasks()

    def step_time_us(self, *, elapsed_us: int) -> int:
        return max(0, elapsed_us - self._waited_ns // 1000)

    def reset(self) -> None:
        self._sequences.clear()

    def drop_window_parts(self, block_ids: Sequence[int]) -> None:
        if not self.info.recurrent:
            raise NotImplementedError("this backend has no window parts")
        for block_id in block_ids:
            self._pool.states.pop(block_id, None)

    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        self._pool.copy_block(source_block_id, destination_block_id, num_tokens)

    def step(self, chunks: Sequence[Chunk], late_masks: AnyLateMasks | None = None) -> StepResult:
        outcomes: dict[int, SequenceResult] = {}
        accepted: list[Chunk] = []
        taken = StepChunks(self._sequences)
        self._waited_ns = 0
        for chunk in chunks:
            self._sequences.append(chunk.sequence_id, chunk.appended_token_ids)
            problem = taken.take(chunk)
            if problem is None:
                accepted.append(chunk)
            else:
                outcomes[chunk.sequence_id] = failure(chunk.sequence_id, INVALID_PLAN, problem)
        if accepted:
            logits = self._forward([self._row_tokens(chunk) for chunk in accepted], accepted)
            first_row, first_token = 0, 0
            for chunk in accepted:
                sequence = self._sequences[chunk.sequence_id]
                rows = sequence.rows(chunk)
                outcome = None
                if sequence.pool is not None:
                    outcome = self._vector(chunk, self._output[first_token : first_token + chunk.num_tokens])
                elif rows or chunk.score:
                    outcome = self._outcome(chunk, rows, logits[first_row : first_row + len(rows)], late_masks)
                if outcome is not None:
                    outcomes[chunk.sequence_id] = outcome
                first_row += len(rows)
                first_token += chunk.num_tokens
        return step_result(chunks, outcomes)

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        self._sequences.check_score(len(token_ids))
        block_ids = list(range(self._pool.num_blocks))
        pieces = []
        for first in range(0, len(token_ids), self.info.max_step_tokens):
            tokens = list(token_ids[first : first + self.info.max_step_tokens])
            slots = self._pool.slots(block_ids, first + len(tokens))
            step = _make_step([(tokens, first, slots, 0, None)], sampling_rows=list(range(len(tokens))))
            pieces.append(self._run(step))
        return np.concatenate(pieces)

    def _row_tokens(self, chunk: Chunk) -> list[int]:
        token_ids = self._sequences[chunk.sequence_id].token_ids
        return token_ids[chunk.first_position : chunk.first_position + chunk.num_tokens]

    def _forward(self, tokens: Sequence[list[int]], chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        parts, sampling_rows, num_rows = [], [], 0
        for chunk, chunk_tokens in zip(chunks, tokens, strict=True):
            sequence = self._sequences[chunk.sequence_id]
            end = chunk.first_position + chunk.num_tokens
            slots = self._pool.slots(sequence.block_ids, end)
            parts.append((chunk_tokens, chunk.first_position, slots, sequence.pool or 0, sequence.adapter))
            sampling_rows += [num_rows + offset for offset in sequence.rows(chunk).offsets(chunk.num_tokens)]
            num_rows += chunk.num_tokens
            sequence.num_computed = end
        sees_all = self._pooling is not None and self._pooling.whole
        return self._run(_make_step(parts, sampling_rows, sees_all=sees_all))

    def _vector(self, chunk: Chunk, output: NDArray[np.float32]) -> SequenceResult | None:
        """Takes the output [num_tokens, N] of a chunk of a pooled sequence."""
        assert self._pooling is not None, "the router asks for vectors only where there are some"
        is_mean = self._pooling.kind == "mean"
        rows = output if is_mean else output[0 if self._pooling.kind == "first" else -1]
        return vector_outcome(self._sequences[chunk.sequence_id], chunk, rows, is_mean=is_mean)

    def _outcome(
        self, chunk: Chunk, rows: LogitsRows, logits: NDArray[np.float32], late_masks: AnyLateMasks | None
    ) -> SequenceResult | None:
        try:
            scores = [self._score(chunk, index, logits[index]) for index in range(rows.num_scored)]
        except NotFiniteError as error:
            return failure(chunk.sequence_id, NOT_FINITE, str(error))
        if not rows.num_samples:
            return SequenceResult(sequence_id=chunk.sequence_id, scores=scores)
        outcome = self._sample(chunk, logits[rows.num_scored], late_masks)
        if outcome is not None and outcome.HasField("token"):
            outcome.scores.extend(scores)
        return outcome

    def _score(self, chunk: Chunk, index: int, logits: NDArray[np.float32]) -> PromptTokenLogprob:
        """Scores the token that follows the chunk's position `index`."""
        check_finite(logits)
        sequence = self._sequences[chunk.sequence_id]
        token_id = sequence.token_ids[chunk.first_position + index + 1]
        logprobs = log_softmax(logits)
        top = top_logprobs(logprobs, sequence.sampling.num_top_prompt_logprobs)
        rank = int(np.count_nonzero(logits >= logits[token_id]))
        return PromptTokenLogprob(logprob=float(logprobs[token_id]), rank=rank, top_logprobs=top)

    def _sample(
        self, chunk: Chunk, logits: NDArray[np.float32], late_masks: AnyLateMasks | None
    ) -> SequenceResult | None:
        sequence_id, mask = chunk.sequence_id, chunk.allowed_tokens
        if chunk.awaits_mask:
            assert late_masks is not None, "a chunk awaits its mask somewhere"
            began_ns = time.perf_counter_ns()
            mask = late_masks.wait(sequence_id)
            self._waited_ns += time.perf_counter_ns() - began_ns
            if not mask:
                return None
            problem = self._sequences.mask_problem(mask)
            if problem is not None:
                return failure(sequence_id, INVALID_PLAN, problem)
        sequence = self._sequences[sequence_id]
        params = sequence.sampling
        try:
            check_finite(logits)
            token_id = choose_token(logits, sequence.token_ids, sequence.num_prompt_tokens, params, mask)
        except NotFiniteError as error:
            return failure(sequence_id, NOT_FINITE, str(error))
        sequence.token_ids.append(token_id)
        token = SampledToken(token_id=token_id)
        if params.logprobs or params.num_top_logprobs > 0:
            logprobs = log_softmax(logits)
            token.logprob = float(logprobs[token_id])
            token.top_logprobs.extend(top_logprobs(logprobs, params.num_top_logprobs))
        return SequenceResult(sequence_id=sequence_id, token=token)


def _make_step(
    parts: Sequence[tuple[list[int], int, torch.Tensor, int, Adapter | None]],
    sampling_rows: Sequence[int],
    *,
    sees_all: bool = False,
) -> Step:
    """Makes a step of chunks.

    parts: (tokens, first position, slots of all positions up to the last, position of the second text, adapter) of each
        chunk.
    """
    rows, positions, begin = [], [], 0
    for tokens, first_position, slots, second_text, adapter in parts:
        rows.append(ChunkRows(begin, begin + len(tokens), first_position, slots, second_text, adapter))
        positions.append(torch.arange(first_position, first_position + len(tokens)))
        begin += len(tokens)
    return Step(
        token_ids=torch.tensor([token for tokens, *_ in parts for token in tokens], dtype=torch.int64),
        positions=torch.cat(positions),
        rows=rows,
        sampling_rows=torch.tensor(sampling_rows, dtype=torch.int64),
        sees_all=sees_all,
    )
