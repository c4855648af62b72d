"""The sequences that are started, and what a chunk may ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trunkline_server.backends.interface import Chunk, SamplingParams


@dataclass(slots=True)
class RunningSequence:
    """token_ids: prompt and output, all that are known; block_ids: the block table, in order.

    num_computed: tokens whose K and V are stored; None until the first chunk tells where computing begins (what is
    before it, a prefix hit, was computed by another sequence).
    """

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    block_ids: list[int] = field(default_factory=list)
    num_computed: int | None = None


class SequenceTable:
    """Started sequences by id."""

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._sequences: dict[int, RunningSequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, sequence_id: int) -> RunningSequence:
        return self._sequences[sequence_id]

    def start(
        self, sequence_id: int, token_ids: Sequence[int], num_prompt_tokens: int, sampling: SamplingParams
    ) -> None:
        self._sequences[sequence_id] = RunningSequence(list(token_ids), num_prompt_tokens, sampling)

    def append(self, sequence_id: int, token_ids: Sequence[int]) -> None:
        """Appends tokens of the output that were not sampled."""
        if token_ids and (sequence := self._sequences.get(sequence_id)) is not None:
            sequence.token_ids.extend(token_ids)

    def end(self, sequence_id: int) -> None:
        self._sequences.pop(sequence_id, None)

    def clear(self) -> None:
        self._sequences.clear()

    def problem(self, chunk: Chunk) -> str | None:
        """Why the chunk cannot be computed, or None. Changes nothing."""
        sequence = self._sequences.get(chunk.sequence_id)
        if sequence is None:
            return "the sequence is not started"
        if chunk.num_tokens < 1:
            return "the chunk has no tokens"
        end = chunk.first_position + chunk.num_tokens
        if chunk.first_position < 0 or end > len(sequence.token_ids):
            return f"the chunk ends at position {end}, but {len(sequence.token_ids)} tokens are known"
        if sequence.num_computed is not None and chunk.first_position > sequence.num_computed:
            return f"the chunk begins at position {chunk.first_position}, but {sequence.num_computed} are computed"
        if chunk.sample and end != len(sequence.token_ids):
            return f"the chunk samples after position {end - 1}, but {len(sequence.token_ids)} tokens are known"
        if any(not 0 <= block_id < self._num_blocks for block_id in chunk.new_block_ids):
            return f"a block id is not below {self._num_blocks}"
        num_blocks = len(sequence.block_ids) + len(chunk.new_block_ids)
        if num_blocks * self._block_size < end:
            return f"{num_blocks} blocks of {self._block_size} positions cannot hold {end} tokens"
        return None
