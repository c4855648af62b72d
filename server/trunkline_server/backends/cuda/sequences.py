"""What the host knows of a sequence whose newest tokens may still be on the device."""

from __future__ import annotations

from dataclasses import dataclass, field

from trunkline_server.backends import sequences
from trunkline_server.backends.cuda.sampling_rules import SamplingRules


@dataclass(slots=True, eq=False)
class RunningSequence(sequences.RunningSequence):
    """token_ids: as far as the host has seen them.

    num_pending: tokens after those, one of each step in flight that samples; the newest is in row `pending_row` of its
    step's samples.
    """

    rules: SamplingRules = field(kw_only=True)
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
