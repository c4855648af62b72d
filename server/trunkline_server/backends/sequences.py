"""Started sequences, and the checks of their chunks. Shared by all backends written in Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import numpy as np

from trunkline_server._proto.shard_pb2 import Chunk, SamplingParams, SequenceResult, SequenceStart
from trunkline_server.backends.interface import NOT_FINITE, BackendInfo, failure, num_rows
from trunkline_server.errors import InvalidArgument
from trunkline_server.sampling.masks import mask_problem

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class LogitsRows:
    """The rows of logits of a chunk: those of its first `num_scored` positions, then `num_samples` to sample from.

    The rows to sample from are those of the last known token and of each draft behind it.
    """

    num_scored: int
    num_samples: int

    def __len__(self) -> int:
        return self.num_scored + self.num_samples

    def offsets(self, num_tokens: int) -> list[int]:
        """Returns the positions of the rows in a chunk of `num_tokens` known tokens, from its first position."""
        return [*range(self.num_scored), *range(num_tokens - 1, num_tokens - 1 + self.num_samples)]


@dataclass(slots=True, eq=False)
class RunningSequence:
    """The state of a started sequence.

    token_ids: all known tokens, prompt and output; block_ids: the block table, in order.
    num_computed: tokens whose K and V are stored or being stored; None until the first chunk, which begins behind the
    prefix hit that other sequences computed.
    """

    token_ids: list[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    block_ids: list[int] = field(default_factory=list)
    num_computed: int | None = None
    # Not None if the sequence gets a vector instead of tokens: the position of the second of two texts, or 0.
    pool: int | None = None
    # The sum of the outputs so far, if the vector is their mean.
    output_sum: Any = 0.0
    # What the sequence's adapter adds to weights, in the backend's own form.
    adapter: Any = None

    @classmethod
    def of(cls, start: SequenceStart) -> Self:
        # A copy, because a part of a plan keeps all of the plan in memory.
        sampling = SamplingParams()
        sampling.CopyFrom(start.sampling)
        pool = start.pooled.second_text if start.HasField("pooled") else None
        return cls(list(start.token_ids), start.num_prompt_tokens, sampling, pool=pool)

    @property
    def num_tokens(self) -> int:
        """Number of known tokens, which chunks can ask for."""
        return len(self.token_ids)

    def take(self, token_id: int) -> None:
        """Appends a token that became known."""
        self.token_ids.append(token_id)

    def rows(self, chunk: Chunk) -> LogitsRows:
        """Returns the rows of a chunk. A position of the prompt is scored if the prompt has a next token."""
        end = min(chunk.first_position + chunk.num_tokens, self.num_prompt_tokens - 1)
        num_samples = 1 + len(chunk.draft_token_ids) if chunk.sample else 0
        return LogitsRows(max(0, end - chunk.first_position) if chunk.score else 0, num_samples)


def vector_outcome(
    sequence: RunningSequence, chunk: Chunk, rows: NDArray[np.float32], *, is_mean: bool
) -> SequenceResult | None:
    """Returns the vector of a pooled sequence whose prompt is complete.

    rows: the outputs of a chunk, [num_tokens, N], if the vector is their mean; otherwise the vector, [N]. Means add up
    in f64 in the order of positions, so cuts between chunks change no bit.
    """
    if is_mean:
        before = np.broadcast_to(np.float64(sequence.output_sum), rows.shape[1:])
        # Along the first axis, rows are added one after the other.
        sequence.output_sum = np.concatenate([before[None], rows.astype(np.float64)]).sum(0)
        rows = (sequence.output_sum / sequence.num_tokens).astype(np.float32)
    if not chunk.sample:
        return None
    if not np.isfinite(rows).all():
        return failure(chunk.sequence_id, NOT_FINITE, "an element of the vector is NaN or infinite")
    return SequenceResult(sequence_id=chunk.sequence_id, vector=rows.tolist())


AnySequence = TypeVar("AnySequence", bound=RunningSequence)


class SequenceTable(Generic[AnySequence]):
    """Started sequences by id."""

    def __init__(self, info: BackendInfo, vocab_size: int) -> None:
        self.info = info
        self._vocab_size = vocab_size
        self._sequences: dict[int, AnySequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, sequence_id: int) -> AnySequence:
        return self._sequences[sequence_id]

    def get(self, sequence_id: int) -> AnySequence | None:
        return self._sequences.get(sequence_id)

    def start(self, sequence_id: int, sequence: AnySequence) -> None:
        self._sequences[sequence_id] = sequence

    def append(self, sequence_id: int, token_ids: Sequence[int]) -> None:
        """Appends output tokens that were not sampled."""
        if token_ids and (sequence := self._sequences.get(sequence_id)) is not None:
            for token_id in token_ids:
                sequence.take(token_id)

    def end(self, sequence_id: int) -> None:
        self._sequences.pop(sequence_id, None)

    def clear(self) -> None:
        self._sequences.clear()

    def check_score(self, num_tokens: int) -> None:
        """Raises InvalidArgument unless a text of `num_tokens` tokens can be scored now."""
        if self._sequences:
            raise InvalidArgument(f"cannot score while {len(self._sequences)} sequences are started")
        num_positions = self.info.num_device_blocks * self.info.block_size
        if not 1 <= num_tokens <= num_positions:
            raise InvalidArgument(f"cannot score {num_tokens} tokens, but the pool holds {num_positions}")

    def mask_problem(self, mask: bytes) -> str | None:
        """Returns why a mask cannot be used, or None. An empty mask is no mask."""
        return mask_problem(mask, self._vocab_size)

    def problem(self, chunk: Chunk) -> str | None:
        """Returns why the chunk cannot be computed, whatever else the step holds, or None. Changes nothing."""
        sequence = self._sequences.get(chunk.sequence_id)
        if sequence is None:
            return "the sequence is not started"
        if chunk.num_tokens < 1:
            return "the chunk has no tokens"
        end = chunk.first_position + chunk.num_tokens
        if end > sequence.num_tokens:
            return f"the chunk ends at position {end}, but {sequence.num_tokens} tokens are known"
        if sequence.num_computed is not None and chunk.first_position > sequence.num_computed:
            return f"the chunk begins at position {chunk.first_position}, but {sequence.num_computed} are computed"
        if chunk.sample and end != sequence.num_tokens:
            return f"the chunk samples after position {end - 1}, but {sequence.num_tokens} tokens are known"
        # Most chunks have no new block.
        if chunk.new_block_ids and not all(block < self.info.num_device_blocks for block in chunk.new_block_ids):
            return f"a block id is not below {self.info.num_device_blocks}"
        num_blocks = len(sequence.block_ids) + len(chunk.new_block_ids)
        end = chunk.first_position + num_rows(chunk)
        if num_blocks * self.info.block_size < end:
            return f"{num_blocks} blocks of {self.info.block_size} positions cannot hold {end} tokens"
        return self._draft_problem(chunk) if chunk.draft_token_ids else None

    def _draft_problem(self, chunk: Chunk) -> str | None:
        if not chunk.sample or chunk.awaits_mask:
            return "`draft_token_ids` without `sample`, or with a late mask"
        for draft in chunk.draft_token_ids:
            if draft >= self._vocab_size:
                return f"the draft {draft} is not below {self._vocab_size}"
        num_masks = len(chunk.draft_token_ids) if chunk.allowed_tokens else 0
        if len(chunk.draft_masks) != num_masks:
            return f"{len(chunk.draft_masks)} `draft_masks`, expected {num_masks}"
        return next(filter(None, map(self.mask_problem, chunk.draft_masks)), None)


class StepChunks(Generic[AnySequence]):
    """The chunks of one step, taken one after the other within the step's limits.

    num_tokens, num_rows: tokens and rows of logits of the chunks taken so far. max_rows: limit of rows, None for no
    limit. Cost: O(1) per chunk.
    """

    def __init__(self, sequences: SequenceTable[AnySequence], max_rows: int | None = None) -> None:
        self.num_tokens = 0
        self.num_rows = 0
        self._sequences = sequences
        self._max_rows = max_rows
        self._taken_ids: set[int] = set()

    def take(self, chunk: Chunk) -> str | None:
        """Takes a chunk and adds its blocks to its sequence, and returns None; or returns why it cannot, and changes
        nothing.
        """
        problem = self._limit_problem(chunk) or self._sequences.mask_problem(chunk.allowed_tokens)
        problem = problem or self._sequences.problem(chunk)
        if problem is not None:
            return problem
        sequence = self._sequences[chunk.sequence_id]
        num_logits = self.num_rows + len(sequence.rows(chunk))
        if self._max_rows is not None and num_logits > self._max_rows:
            return f"the step needs logits of {num_logits} positions, but the limit is {self._max_rows}"
        self._taken_ids.add(chunk.sequence_id)
        self.num_tokens += num_rows(chunk)
        self.num_rows = num_logits
        sequence.block_ids.extend(chunk.new_block_ids)
        return None

    def _limit_problem(self, chunk: Chunk) -> str | None:
        info = self._sequences.info
        if chunk.sequence_id in self._taken_ids:
            return "the sequence has two chunks in one step"
        if len(self._taken_ids) == info.max_step_sequences:
            return f"the step has more than {info.max_step_sequences} chunks"
        num_tokens = self.num_tokens + num_rows(chunk)
        if num_tokens > info.max_step_tokens:
            return f"the step has {num_tokens} tokens, but the limit is {info.max_step_tokens}"
        return None
