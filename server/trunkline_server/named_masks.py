"""Masks that a Step stream has names for."""

from __future__ import annotations

from trunkline_server._proto import shard_pb2
from trunkline_server.errors import PlanError

# Names are 1 to this, as shard.proto says.
MAX_MASK_ID = 64


class NamedMasks:
    """From names to masks; follows what the router says. For one thread."""

    def __init__(self) -> None:
        self._masks: list[bytes] = [b""] * (MAX_MASK_ID + 1)

    def read(self, late: shard_pb2.LateMask) -> bytes:
        """What a late mask allows; empty: nothing is sampled. Raises PlanError."""
        mask: bytes = late.allowed_tokens
        mask_id = late.mask_id
        if not mask_id:
            return mask
        if mask_id > MAX_MASK_ID:
            raise PlanError(
                f"late mask of sequence {late.sequence_id}: `mask_id` is {mask_id}, expected at most {MAX_MASK_ID}"
            )
        if mask:
            self._masks[mask_id] = mask
        elif not (mask := self._masks[mask_id]):
            raise PlanError(f"late mask of sequence {late.sequence_id}: mask {mask_id} has not been sent")
        return mask
