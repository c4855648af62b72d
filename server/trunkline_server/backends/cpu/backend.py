"""Implements `Backend` over the step executor of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from trunkline_server._kernels import LateMasks
from trunkline_server.backends.interface import (
    BackendInfo,
    Chunk,
    Sampled,
    SamplingParams,
    SequenceFailure,
    Store,
    TokenScore,
)
from trunkline_server.errors import PlanError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trunkline_server._kernels import Executor
    from trunkline_server.backends.cpu.draft_model import DraftModel
    from trunkline_server.backends.cpu.store import DiskStore

_chunk_fields = attrgetter(
    "sequence_id", "first_position", "num_tokens", "new_block_ids", "sample", "score", "draft_token_ids"
)


class CpuBackend:
    """Implements `Backend`. The executor holds weights, pool and sequences and does all of the work."""

    def __init__(
        self,
        executor: Executor,
        info: BackendInfo,
        *,
        vocab_size: int,
        store: DiskStore | None = None,
        after_start: Callable[[], None] | None = None,
        draft_model: DraftModel | None = None,
        makes_vectors: bool = False,
    ) -> None:
        self.info = info
        self._draft_model = draft_model
        self.store: Store | None = store
        self._after_start = after_start
        self._executor = executor
        self._vocab_size = vocab_size
        self._makes_vectors = makes_vectors

    def after_start(self) -> None:
        if self._after_start is not None:
            self._after_start()

    def start(
        self,
        sequence_id: int,
        token_ids: Sequence[int],
        num_prompt_tokens: int,
        sampling: SamplingParams,
        root_key: bytes = b"",
        *,
        pool: int | None = None,
    ) -> None:
        fields = sampling.for_kernels()
        self._executor.start(sequence_id, token_ids, num_prompt_tokens, fields, root_key or None, pool=pool)
        if self._draft_model is not None:
            self._draft_model.start(sequence_id, token_ids, num_prompt_tokens)

    def end(self, sequence_id: int) -> None:
        self._executor.end(sequence_id)
        if self._draft_model is not None:
            self._draft_model.end(sequence_id)

    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        self._executor.copy_block(source_block_id, destination_block_id, num_tokens)
        if self._draft_model is not None:
            self._draft_model.copy_block(source_block_id, destination_block_id, num_tokens)

    def drop_window_parts(self, block_ids: Sequence[int]) -> None:
        self._executor.drop_window_parts(block_ids)

    @property
    def draft_time_us(self) -> int:
        """Microseconds that the draft model took to draft in the last step."""
        return 0 if self._draft_model is None else self._draft_model.time_us

    def step(self, chunks: Sequence[Chunk]) -> list[Sampled | SequenceFailure]:
        return self._step(chunks) if self._draft_model is None else self._step_with(self._draft_model, chunks)

    def _step_with(self, draft_model: DraftModel, chunks: Sequence[Chunk]) -> list[Sampled | SequenceFailure]:
        """Runs a step whose chunks may have drafts of the draft model."""
        for chunk in chunks:
            draft_model.append(chunk.sequence_id, chunk.appended_token_ids)
        drafted = draft_model.draft(chunks)
        num_drafts = {chunk.sequence_id: len(chunk.draft_token_ids) for chunk in drafted if chunk.num_own_drafts}
        results: list[Sampled | SequenceFailure] = []
        for result in self._step(drafted):
            if isinstance(result, Sampled) and result.token_id is not None:
                tokens = [result.token_id, *(token.token_id for token in result.more_tokens)]
                draft_model.append(result.sequence_id, [token for token in tokens if token is not None])
                if own := num_drafts.get(result.sequence_id):
                    result = replace(result, num_own_drafts=own)
            results.append(result)
        return results

    def _step(self, chunks: Sequence[Chunk]) -> list[Sampled | SequenceFailure]:
        stores = [(chunk.sequence_id, store.block_index, store.slot) for chunk in chunks for store in chunk.stores]
        appends = [(chunk.sequence_id, chunk.appended_token_ids) for chunk in chunks if chunk.appended_token_ids]
        masks = [(chunk.sequence_id, chunk.allowed_tokens) for chunk in chunks if chunk.allowed_tokens]
        draft_masks = [(chunk.sequence_id, chunk.draft_masks) for chunk in chunks if chunk.draft_masks]
        for chunk in chunks:
            if chunk.late_masks is not None:
                assert isinstance(chunk.late_masks, LateMasks), "late masks come from make_late_masks"
                self._executor.await_mask(chunk.sequence_id, chunk.late_masks)
        try:
            fields = [_chunk_fields(chunk) for chunk in chunks]
            outcomes = self._executor.step(fields, stores, appends, masks, draft_masks)
        except ValueError as error:
            raise PlanError(str(error)) from error
        # A sampled token has four fields and a failure three, both in the order of their classes.
        results = [Sampled(*outcome) if len(outcome) == 4 else SequenceFailure(*outcome) for outcome in outcomes]
        if any(chunk.draft_token_ids for chunk in chunks):
            results = _joined(results)
        if self._makes_vectors and (vectors := self._executor.vectors()):
            results = _merged(chunks, results, [Sampled(name, None, vector=vector) for name, vector in vectors])
        return self._with_scores(chunks, results) if any(chunk.score for chunk in chunks) else results

    def _with_scores(
        self, chunks: Sequence[Chunk], results: Sequence[Sampled | SequenceFailure]
    ) -> list[Sampled | SequenceFailure]:
        """Adds the scores of prompt tokens to the outcomes."""
        by_id = {result.sequence_id: result for result in results}
        for sequence_id, tokens in self._executor.scores():
            # A chunk that failed has no scores, so its result is a sampled token or missing.
            sampled = by_id.get(sequence_id)
            scores = [TokenScore(*token) for token in tokens]
            if isinstance(sampled, Sampled):
                by_id[sequence_id] = replace(sampled, scores=scores)
            else:
                by_id[sequence_id] = Sampled(sequence_id, None, scores=scores)
        return [by_id[chunk.sequence_id] for chunk in chunks if chunk.sequence_id in by_id]

    def step_time_us(self, *, elapsed_us: int) -> int:
        return max(0, elapsed_us - self._executor.waited_us)

    def make_late_masks(self) -> LateMasks:
        return LateMasks()

    def reset(self) -> None:
        self._executor.reset()
        if self._draft_model is not None:
            self._draft_model.reset()
        if self.info.num_window_parts:
            # A router that starts anew expects no block to have a window part.
            self._executor.drop_window_parts(range(self.info.num_device_blocks))

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        import numpy as np  # imported here because it is slow to import and serving does not need it

        logits = np.frombuffer(self._executor.score(token_ids), dtype=np.float32)
        return logits.reshape(len(token_ids), self._vocab_size)


def _merged(
    chunks: Sequence[Chunk], results: Sequence[Sampled | SequenceFailure], more: Sequence[Sampled]
) -> list[Sampled | SequenceFailure]:
    """Joins outcomes of different sequences, in the order of the chunks."""
    by_id = {result.sequence_id: result for result in (*results, *more)}
    return [by_id[chunk.sequence_id] for chunk in chunks if chunk.sequence_id in by_id]


def _joined(results: Sequence[Sampled | SequenceFailure]) -> list[Sampled | SequenceFailure]:
    """Makes one outcome of the tokens of each sequence, which follow each other."""
    joined: list[Sampled | SequenceFailure] = []
    for _, outcomes in groupby(results, attrgetter("sequence_id")):
        first, *more = outcomes
        more_tokens = [token for token in more if isinstance(token, Sampled)]
        joined.append(replace(first, more_tokens=more_tokens) if isinstance(first, Sampled) and more else first)
    return joined
