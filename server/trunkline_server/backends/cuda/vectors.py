"""Vectors of pooled sequences, from the rows that a step leaves on the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trunkline_server._proto.shard_pb2 import Chunk, SequenceResult
from trunkline_server.backends.sequences import vector_outcome

if TYPE_CHECKING:
    import torch

    from trunkline_server.backends.cuda.ops import DeviceModel
    from trunkline_server.backends.cuda.sequences import RunningSequence
    from trunkline_server.models.pooling import Pooling


@dataclass(frozen=True)
class Vectors:
    """Says how the model makes vectors. generates: it has logits, too."""

    model: DeviceModel
    pooling: Pooling
    generates: bool

    def take(self, first_token: int, first_row: int, chunk: Chunk) -> torch.Tensor | None:
        """Returns a copy of a chunk's rows of the last step, behind it on the device; None if it needs none.

        first_token, first_row: the chunk's first token and its first row of logits in the step.
        """
        rows = self.model.vectors
        assert rows is not None, "the model makes vectors"
        if self.pooling.is_summed:
            return rows[first_token : first_token + chunk.num_tokens].clone()
        return rows[first_row].clone() if chunk.sample else None

    def outcome(self, sequence: RunningSequence, chunk: Chunk, rows: torch.Tensor | None) -> SequenceResult | None:
        """Returns the vector of a sequence whose prompt is complete. rows: what `take` returned, computed by now."""
        if rows is None:
            return None
        return vector_outcome(sequence, chunk, rows.cpu().numpy(), is_mean=self.pooling.is_summed)
