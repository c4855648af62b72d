"""Step plans and step results as plain data: what the service decodes, the engine does and the service encodes.

Field by field as in shard.proto, which documents them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trunkline_server.backends.interface import Chunk, Restore, Sampled, SamplingParams, SequenceFailure, Transfers


@dataclass(frozen=True, slots=True)
class SequenceStart:
    """As `SequenceStart` in shard.proto."""

    sequence_id: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    root_key: bytes = b""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """As `BlockCopy` in shard.proto."""

    source_block_id: int
    destination_block_id: int
    num_tokens: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """As `StepPlan` in shard.proto; done in the order that it says there."""

    step_id: int
    ends: Sequence[int] = field(default=())
    starts: Sequence[SequenceStart] = field(default=())
    copies: Sequence[BlockCopy] = field(default=())
    chunks: Sequence[Chunk] = field(default=())
    restores: Sequence[Restore] = field(default=())
    discards: Sequence[int] = field(default=())
    window_drops: Sequence[int] = field(default=())


@dataclass(frozen=True, slots=True)
class StepResult:
    """As `StepResult` in shard.proto: an entry for each chunk that samples, scores or failed, in the chunks' order."""

    step_id: int
    sequences: Sequence[Sampled | SequenceFailure]
    device_time_us: int


@dataclass(frozen=True, slots=True)
class StepResponse:
    """As `StepResponse` in shard.proto: at least one of both."""

    result: StepResult | None
    transfers: Transfers | None = None
