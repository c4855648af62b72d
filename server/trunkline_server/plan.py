"""Step plans and step results as plain data: the service decodes plans, the engine runs them, the service encodes
results.

The fields are those of the messages in shard.proto, which documents them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from trunkline_server._proto.shard_pb2 import BlockCopy, Chunk, Restore
from trunkline_server.backends.interface import LateMasks, Sampled, SamplingParams, SequenceFailure, Transfers


@dataclass(frozen=True, slots=True)
class SequenceStart:
    sequence_id: int
    token_ids: Sequence[int]
    num_prompt_tokens: int
    sampling: SamplingParams
    root_key: bytes = b""
    # The position of the second of two texts, or 0; None: the sequence gets tokens.
    pool: int | None = None
    # The reason why the start is invalid by itself.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class StepPlan:
    """All work of one step, done in the order that shard.proto defines.

    late_masks: where chunks with `awaits_mask` find their masks.
    """

    step_id: int
    ends: Sequence[int] = field(default=())
    starts: Sequence[SequenceStart] = field(default=())
    copies: Sequence[BlockCopy] = field(default=())
    chunks: Sequence[Chunk] = field(default=())
    restores: Sequence[Restore] = field(default=())
    discards: Sequence[int] = field(default=())
    window_drops: Sequence[int] = field(default=())
    late_masks: LateMasks | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of one step: one entry for each chunk that samples, scores or failed, in the order of the chunks."""

    step_id: int
    sequences: Sequence[Sampled | SequenceFailure]
    device_time_us: int
    draft_time_us: int = 0


@dataclass(frozen=True, slots=True)
class StepResponse:
    """A message to the router; at least one field is set."""

    result: StepResult | None
    transfers: Transfers | None = None
