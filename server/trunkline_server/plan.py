"""Step results as plain data: the engine makes them, the service encodes them.

The fields are those of the messages in shard.proto, which documents them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trunkline_server.backends.interface import Sampled, SequenceFailure, Transfers


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
