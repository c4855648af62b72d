"""Implements `Backend` over the step executor of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trunkline_server._kernels import LateMasks
from trunkline_server._proto.shard_pb2 import (
    SEQUENCE_ERROR_CODE_INVALID_PLAN,
    SEQUENCE_ERROR_CODE_NOT_FINITE,
    Chunk,
    PromptTokenLogprob,
    SampledToken,
    SequenceResult,
    SequenceStart,
    StepPlan,
    StepResult,
)
from trunkline_server.backends.interface import (
    BackendInfo,
    Sampled,
    SequenceFailure,
    Store,
    TokenScore,
)
from trunkline_server.backends.interface import LateMasks as AnyLateMasks
from trunkline_server.errors import PlanError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trunkline_server._kernels import Executor
    from trunkline_server.backends.cpu.draft_model import DraftModel
    from trunkline_server.backends.cpu.store import DiskStore

_ERROR_CODES = {
    SEQUENCE_ERROR_CODE_NOT_FINITE: "not_finite",
    SEQUENCE_ERROR_CODE_INVALID_PLAN: "invalid_plan",
}


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
    ) -> None:
        self.info = info
        self._draft_model = draft_model
        self.store: Store | None = store
        self._after_start = after_start
        self._executor = executor
        self._vocab_size = vocab_size

    def after_start(self) -> None:
        if self._after_start is not None:
            self._after_start()

    def start(self, start: SequenceStart) -> None:
        self._executor.start(start.SerializeToString())
        if self._draft_model is not None:
            self._draft_model.start(start)

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

    def step(self, chunks: Sequence[Chunk], late_masks: AnyLateMasks | None = None) -> list[Sampled | SequenceFailure]:
        assert late_masks is None or isinstance(late_masks, LateMasks), "late masks come from make_late_masks"
        if self._draft_model is None:
            return self._step(chunks, late_masks)
        return self._step_with(self._draft_model, chunks, late_masks)

    def _step_with(
        self, draft_model: DraftModel, chunks: Sequence[Chunk], late_masks: LateMasks | None
    ) -> list[Sampled | SequenceFailure]:
        """Runs a step whose chunks may have drafts of the draft model."""
        for chunk in chunks:
            draft_model.append(chunk.sequence_id, chunk.appended_token_ids)
        drafted = draft_model.draft(chunks)
        num_drafts = {chunk.sequence_id: len(chunk.draft_token_ids) for chunk in drafted if chunk.num_own_drafts}
        results: list[Sampled | SequenceFailure] = []
        for result in self._step(drafted, late_masks):
            if isinstance(result, Sampled) and result.token_id is not None:
                tokens = [result.token_id, *(token.token_id for token in result.more_tokens)]
                draft_model.append(result.sequence_id, [token for token in tokens if token is not None])
                if own := num_drafts.get(result.sequence_id):
                    result = replace(result, num_own_drafts=own)
            results.append(result)
        return results

    def _step(self, chunks: Sequence[Chunk], late_masks: LateMasks | None) -> list[Sampled | SequenceFailure]:
        try:
            result = self._executor.step(StepPlan(chunks=chunks).SerializeToString(), late_masks)
        except ValueError as error:
            raise PlanError(str(error)) from error
        return [_outcome(sequence) for sequence in StepResult.FromString(result).sequences]

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


def _outcome(result: SequenceResult) -> Sampled | SequenceFailure:
    sequence_id = result.sequence_id
    if result.HasField("error"):
        return SequenceFailure(sequence_id, _ERROR_CODES[result.error.code], result.error.message)
    # Most results have neither scores nor more tokens.
    scores: Sequence[TokenScore] = ()
    if result.scores:
        scores = [TokenScore(score.logprob, score.rank, _likeliest(score)) for score in result.scores]
    if not result.HasField("token"):
        return Sampled(sequence_id, None, scores=scores, vector=list(result.vector) or ())
    token = result.token
    more: Sequence[Sampled] = ()
    if result.more_tokens:
        more = [Sampled(sequence_id, other.token_id, other.logprob, _likeliest(other)) for other in result.more_tokens]
    return Sampled(sequence_id, token.token_id, token.logprob, _likeliest(token), scores, more)


def _likeliest(message: SampledToken | PromptTokenLogprob) -> list[tuple[int, float]]:
    return [(token.token_id, token.logprob) for token in message.top_logprobs]
