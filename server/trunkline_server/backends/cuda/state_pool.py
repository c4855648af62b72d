"""States of recurrent layers on the device, and the blocks that keep them: docs/decisions/0038-recurrent-layers.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from trunkline_server.errors import PlanError


@dataclass(frozen=True, slots=True)
class ChunkStates:
    """The states that a chunk reads and writes.

    source: that before the chunk; -1 at the beginning of a sequence. kept: for each state that is written, the row of
    the chunk that it is behind, and its number.
    """

    source: int = -1
    kept: Sequence[tuple[int, int]] = ()


# Models without recurrent layers have no states.
NO_STATES = ChunkStates()


class StatePool:
    """The states of blocks, [num_states, state_size] f32 on the device. A state is that of all layers, in their order.

    The host assigns them. A plan may drop the state of a block while a step that reads it is in flight, because later
    steps run behind that one on the device.
    """

    def __init__(self, *, num_states: int, state_size: int, block_size: int, device: torch.device | str) -> None:
        self.states = torch.zeros(num_states, state_size, dtype=torch.float32, device=device)
        self._block_size = block_size
        self._state_of: dict[int, int] = {}
        # The last one is taken first, so the lowest number is last.
        self._free = list(range(num_states))[::-1]

    @property
    def num_free(self) -> int:
        return len(self._free)

    def admit(self, first_position: int, num_tokens: int, block_ids: Sequence[int]) -> ChunkStates:
        """Returns where a chunk of a sequence reads and writes states. Raises PlanError if it cannot."""
        source = -1
        if first_position > 0:
            before = block_ids[(first_position - 1) // self._block_size]
            if before not in self._state_of:
                raise PlanError(f"block {before} has no window part, but position {first_position} needs it")
            source = self._state_of[before]
        kept = []
        for index in kept_blocks(first_position, first_position + num_tokens, self._block_size):
            end = min(first_position + num_tokens, (index + 1) * self._block_size)
            kept.append((end - 1 - first_position, self._take(block_ids[index])))
        return ChunkStates(source, kept)

    def _take(self, block_id: int) -> int:
        """Returns the state of a block, which gets one if it has none. Raises PlanError."""
        if block_id not in self._state_of:
            if not self._free:
                raise PlanError(f"block {block_id} needs a window part, but all {len(self.states)} are in use")
            self._state_of[block_id] = self._free.pop()
        return self._state_of[block_id]

    def drop(self, block_ids: Iterable[int]) -> None:
        """Frees the states of blocks. Blocks without one are skipped."""
        self._free += [self._state_of.pop(block_id) for block_id in block_ids if block_id in self._state_of]

    def drop_all(self) -> None:
        self.drop(list(self._state_of))

    def copy(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        """Copies the state of a block, if it has one. Raises PlanError for a part of a block, or without room."""
        if source_block_id not in self._state_of:
            return
        if num_tokens != self._block_size:
            raise PlanError(f"cannot copy {num_tokens} tokens of a block of {self._block_size} with its state")
        self.states[self._take(destination_block_id)].copy_(self.states[self._state_of[source_block_id]])


def kept_blocks(first: int, end: int, block_size: int) -> list[int]:
    """Returns which blocks of a sequence keep the states of the positions `first` to `end`.

    These are the last two that the positions are in, and the first one if it was partly filled, because it has a state
    already.
    """
    begin, last = first // block_size, (end - 1) // block_size
    return [index for index in range(begin, last + 1) if index + 1 >= last or (index == begin and first % block_size)]
