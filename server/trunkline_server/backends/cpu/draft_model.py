"""A small model beside the main one, which drafts the next tokens of sequences."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trunkline_server._proto.shard_pb2 import Chunk, SequenceStart, StepPlan, StepResult
from trunkline_server.backends.interface import sampling_params

if TYPE_CHECKING:
    from trunkline_server._kernels import Executor

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Sequence:
    """num_known, num_computed: tokens that the draft model knows, and positions whose K and V it has computed."""

    num_known: int
    num_computed: int | None = None


class DraftModel:
    """Drafts greedily. Its executor has a pool with the blocks of the main one, so that both use the same block tables.

    It computes every chunk of the main model as well, so its K and V are there wherever a prefix is found. Blocks that
    come from a store lack them, which makes drafts wrong there and nothing else.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._sequences: dict[int, _Sequence] = {}
        # Tokens that the executor gets with the next chunk of their sequence.
        self._appends: dict[int, list[int]] = {}
        self.time_us = 0

    @property
    def weight_bytes(self) -> int:
        return self._executor.weight_bytes

    @property
    def bytes_per_block(self) -> int:
        return self._executor.bytes_per_block

    def start(self, start: SequenceStart) -> None:
        """Starts a sequence of the main model."""
        greedy = SequenceStart(
            sequence_id=start.sequence_id,
            token_ids=start.token_ids,
            num_prompt_tokens=start.num_prompt_tokens,
            sampling=sampling_params(),
        )
        self._executor.start(greedy.SerializeToString())
        self._sequences[start.sequence_id] = _Sequence(len(start.token_ids))

    def end(self, sequence_id: int) -> None:
        if self._sequences.pop(sequence_id, None) is not None:
            self._appends.pop(sequence_id, None)
            self._executor.end(sequence_id)

    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        self._executor.copy_block(source_block_id, destination_block_id, num_tokens)

    def reset(self) -> None:
        self._executor.reset()
        self._sequences.clear()
        self._appends.clear()

    def append(self, sequence_id: int, token_ids: Sequence[int]) -> None:
        """Appends tokens that the main model sampled, or that a grammar forced."""
        if token_ids and (sequence := self._sequences.get(sequence_id)) is not None:
            self._appends.setdefault(sequence_id, []).extend(token_ids)
            sequence.num_known += len(token_ids)

    def draft(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """Computes the positions of chunks, and returns them with drafts where they ask for some.

        A chunk that the draft model cannot compute has none. Sets `time_us` to the microseconds of the drafting alone.
        """
        tokens = self._step([self._follow(chunk) for chunk in chunks if self._follows(chunk)])
        began = time.perf_counter_ns()
        drafts = {sequence_id: [token] for sequence_id, token in tokens.items()}
        wanted = {chunk.sequence_id: chunk.num_own_drafts for chunk in chunks}
        while ahead := [sequence_id for sequence_id in tokens if len(drafts[sequence_id]) < wanted[sequence_id]]:
            tokens = self._step([self._next(sequence_id, len(drafts[sequence_id])) for sequence_id in ahead])
            for sequence_id, token in tokens.items():
                drafts[sequence_id].append(token)
        for sequence_id in drafts:
            if (sequence := self._sequences.get(sequence_id)) is not None:
                self._executor.rewind(sequence_id, sequence.num_known)
                sequence.num_computed = sequence.num_known
        self.time_us = (time.perf_counter_ns() - began) // 1000
        return [_with_drafts(chunk, drafts.get(chunk.sequence_id, ())) for chunk in chunks]

    def _follows(self, chunk: Chunk) -> bool:
        """Returns True if the draft model knows the chunk's tokens."""
        sequence = self._sequences.get(chunk.sequence_id)
        return sequence is not None and chunk.first_position + chunk.num_tokens <= sequence.num_known

    def _follow(self, chunk: Chunk) -> Chunk:
        """Returns the chunk that computes everything up to the end of the main model's chunk."""
        computed = self._sequences[chunk.sequence_id].num_computed
        first = chunk.first_position if computed is None else computed
        end = chunk.first_position + chunk.num_tokens
        return Chunk(
            sequence_id=chunk.sequence_id,
            first_position=first,
            num_tokens=end - first,
            new_block_ids=chunk.new_block_ids,
            sample=chunk.num_own_drafts > 0,
            appended_token_ids=self._appends.pop(chunk.sequence_id, ()),
        )

    def _next(self, sequence_id: int, num_drafts: int) -> Chunk:
        """Returns the chunk of the last of `num_drafts` drafts, which samples the next one."""
        position = self._sequences[sequence_id].num_known + num_drafts - 1
        return Chunk(sequence_id=sequence_id, first_position=position, num_tokens=1, sample=True)

    def _step(self, chunks: Sequence[Chunk]) -> dict[int, int]:
        """Runs one step and returns the sampled tokens by sequence id. Forgets sequences whose chunks fail."""
        if not chunks:
            return {}
        for chunk in chunks:
            self._sequences[chunk.sequence_id].num_computed = chunk.first_position + chunk.num_tokens
        tokens: dict[int, int] = {}
        result = StepResult.FromString(self._executor.step(StepPlan(chunks=chunks).SerializeToString()))
        for sequence in result.sequences:
            if sequence.HasField("error"):
                logger.warning("the draft model gives up a sequence: %s", sequence.error.message)
                self.end(sequence.sequence_id)
            else:
                tokens[sequence.sequence_id] = sequence.token.token_id
        return tokens


def _with_drafts(chunk: Chunk, draft_token_ids: Sequence[int]) -> Chunk:
    drafted = Chunk()
    drafted.CopyFrom(chunk)
    drafted.draft_token_ids.extend(draft_token_ids)
    return drafted
