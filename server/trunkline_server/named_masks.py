"""The masks that have a name on a Step stream."""

from __future__ import annotations

from trunkline_server._proto import shard_pb2
from trunkline_server.errors import PlanError

# Names are 1 to this number; see `LateMask.mask_id` in shard.proto.
MAX_MASK_ID = 64


class NamedMasks:
    """Maps names to masks as the router assigns them. Not thread-safe."""

    def __init__(self) -> None:
        self._masks: list[bytes] = [b""] * (MAX_MASK_ID + 1)

    def read(self, message: shard_pb2.LateMask | shard_pb2.SamplingParams, sequence_id: int) -> bytes:
        """Returns the mask that a message about a sequence carries or names; empty if it does neither.

        Raises PlanError.
        """
        mask: bytes = message.allowed_tokens
        mask_id = message.mask_id
        if not mask_id:
            return mask
        if mask_id > MAX_MASK_ID:
            raise PlanError(f"mask of sequence {sequence_id}: `mask_id` is {mask_id}, expected at most {MAX_MASK_ID}")
        if mask:
            self._masks[mask_id] = mask
        elif not (mask := self._masks[mask_id]):
            raise PlanError(f"mask of sequence {sequence_id}: mask {mask_id} has not been sent")
        return mask
