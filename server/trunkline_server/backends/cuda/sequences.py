"""The sequences that are started: what the host knows of them, and what a chunk may ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trunkline_server.backends.cuda.sampling_rules import SamplingRules
from trunkline_server.backends.interface import Chunk, SamplingParams


@dataclass(slots=True, eq=False)
class RunningSequence:
    """token_ids: prompt and output, as far as the host has seen them; block_ids: the block table, in order.

    num_pending: tokens after those, one of each step in flight that samples; the newest is in row `pending_row` of its
    step's samples. num_computed: tokens whose K and V are stored or being stored; None until the first chunk tells
    where computing begins.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    rules: SamplingRules
    block_ids: list[int] = field(default_factory=list)
    num_computed: int | None = None
    num_pending: int = 0
    pending_row: int = -1

    @property
    def num_tokens(self) -> int:
        """Known and pending ones."""
        return len(self.token_ids) + self.num_pending

    def take(self, token_id: int) -> None:
        """A token became known."""
        self.token_ids.append(token_id)
        self.rules.count(token_id)


class SequenceTable:
    """Started sequences by id."""

    def __init__(self, *, num_blocks: int, block_size: int, vocab_size: int) -> None:
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._sequences: dict[int, RunningSequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, sequence_id: int) -> RunningSequence:
        return self._sequences[sequence_id]

    def get(self, sequence_id: int) -> RunningSequence | None:
        """The sequence, if it is started."""
        return self._sequences.get(sequence_id)

    def start(
        self, sequence_id: int, token_ids: Sequence[int], num_prompt_tokens: int, sampling: SamplingParams
    ) -> None:
        rules = SamplingRules(sampling, token_ids, num_prompt_tokens, self._vocab_size)
        self._sequences[sequence_id] = RunningSequence(list(token_ids), num_prompt_tokens, sampling, rules)

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
        if chunk.first_position < 0 or end > sequence.num_tokens:
            return f"the chunk ends at position {end}, but {sequence.num_tokens} tokens are known"
        if sequence.num_computed is not None and chunk.first_position > sequence.num_computed:
            return f"the chunk begins at position {chunk.first_position}, but {sequence.num_computed} are computed"
        if chunk.sample and end != sequence.num_tokens:
            return f"the chunk samples after position {end - 1}, but {sequence.num_tokens} tokens are known"
        if any(not 0 <= block_id < self._num_blocks for block_id in chunk.new_block_ids):
            return f"a block id is not below {self._num_blocks}"
        num_blocks = len(sequence.block_ids) + len(chunk.new_block_ids)
        if num_blocks * self._block_size < end:
            return f"{num_blocks} blocks of {self._block_size} positions cannot hold {end} tokens"
        return None
