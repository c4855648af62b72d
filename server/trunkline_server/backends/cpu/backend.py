"""Implements `Backend` over the step executor of the kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from trunkline_server._kernels import LateMasks
from trunkline_server._proto.shard_pb2 import Chunk, SequenceStart, StepPlan, StepResult
from trunkline_server.backends.interface import AdapterSlots, BackendInfo, Store
from trunkline_server.backends.interface import LateMasks as AnyLateMasks
from trunkline_server.errors import PlanError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from trunkline_server._kernels import Executor
    from trunkline_server.backends.cpu.draft_model import DraftModel
    from trunkline_server.backends.cpu.store import DiskStore


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
        adapters: AdapterSlots | None = None,
    ) -> None:
        self.info = info
        self._draft_model = draft_model
        self.store: Store | None = store
        self.adapters = adapters
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

    def step(self, chunks: Sequence[Chunk], late_masks: AnyLateMasks | None = None) -> StepResult:
        assert late_masks is None or isinstance(late_masks, LateMasks), "late masks come from make_late_masks"
        if self._draft_model is None:
            return self._step(chunks, late_masks)
        return self._step_with(self._draft_model, chunks, late_masks)

    def _step_with(self, draft_model: DraftModel, chunks: Sequence[Chunk], late_masks: LateMasks | None) -> StepResult:
        """Runs a step whose chunks may have drafts of the draft model."""
        for chunk in chunks:
            draft_model.append(chunk.sequence_id, chunk.appended_token_ids)
        drafted = draft_model.draft(chunks)
        num_drafts = {chunk.sequence_id: len(chunk.draft_token_ids) for chunk in drafted if chunk.num_own_drafts}
        result = self._step(drafted, late_masks)
        for one in result.sequences:
            if one.HasField("token"):
                tokens = [one.token.token_id, *(token.token_id for token in one.more_tokens)]
                draft_model.append(one.sequence_id, tokens)
                one.num_own_drafts = num_drafts.get(one.sequence_id, 0)
        return result

    def _step(self, chunks: Sequence[Chunk], late_masks: LateMasks | None) -> StepResult:
        try:
            message = self._executor.step(StepPlan(chunks=chunks).SerializeToString(), late_masks)
        except ValueError as error:
            raise PlanError(str(error)) from error
        result: StepResult = StepResult.FromString(message)
        return result

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
