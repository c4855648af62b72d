"""Sequences whose newest tokens may still be on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

from trunkline_server.backends import sequences
from trunkline_server.backends.cuda.sampling_rules import SamplingRules


@dataclass(slots=True, eq=False)
class RunningSequence(sequences.RunningSequence):
    """A sequence. token_ids: those that the host has read.

    num_pending: tokens after those, one for each step in flight that samples. The newest is in row `pending_row` of its
    step's samples.
    """

    rules: SamplingRules = field(init=False)
    num_pending: int = 0
    pending_row: int = -1

    @property
    def num_tokens(self) -> int:
        """Number of known and pending tokens."""
        return len(self.token_ids) + self.num_pending

    def take(self, token_id: int) -> None:
        """Appends a token that became known."""
        self.token_ids.append(token_id)
        self.rules.count(token_id)
