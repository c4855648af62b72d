"""How memory for K and V is divided where blocks are in two parts: docs/decisions/0015-windowed-layers.md."""

from __future__ import annotations

from dataclasses import dataclass

# Blocks of a model whose layers all have windows take no memory here, but some in the router.
MAX_BLOCKS = 1 << 20
# Of what is left when all that may run has its window, this part goes to further windows: the ends of cached prefixes.
CACHED_WINDOWS_DIVISOR = 4


@dataclass(frozen=True, kw_only=True)
class PoolSizes:
    """num_window_parts: None if blocks are in one piece."""

    num_blocks: int
    num_window_parts: int | None = None


@dataclass(frozen=True, kw_only=True)
class WindowNeed:
    """What a model with windows needs. base_bytes, window_bytes: of a block's layers without and with a window."""

    base_bytes: int
    window_bytes: int
    window_size: int
    block_size: int
    max_positions: int
    max_step_tokens: int
    max_step_sequences: int

    @property
    def parts_of_window(self) -> int:
        """Blocks that a window touches at most."""
        return self._blocks(self.window_size - 1) + 1

    @property
    def parts_of_one(self) -> int:
        """Parts that let one sequence run at full speed: its window, a whole step, and a block that it copies from."""
        return self.parts_of_window + self._blocks(self.max_step_tokens) + 1

    @property
    def parts_of_all(self) -> int:
        """The same for all that may run, each with a block to write and one to copy from."""
        return self.max_step_sequences * (self.parts_of_window + 2) + self._blocks(self.max_step_tokens)

    def _blocks(self, num_positions: int) -> int:
        return -(-num_positions // self.block_size)

    def divide(self, num_blocks: int) -> PoolSizes:
        """Divides the memory of `num_blocks` blocks in one piece, which they stay if two parts gain nothing."""
        whole = PoolSizes(num_blocks=num_blocks)
        if self.window_size >= self.max_positions or self.parts_of_one >= num_blocks:
            return whole
        if self.base_bytes == 0:
            # A window is all that a sequence takes: as many blocks as positions can be needed, and those cached.
            positions = self.max_step_sequences * self._blocks(self.max_positions)
            return PoolSizes(num_blocks=min(MAX_BLOCKS, num_blocks + positions), num_window_parts=num_blocks)
        budget = num_blocks * (self.base_bytes + self.window_bytes)
        num_parts = self.parts_of_all
        if num_parts * self.window_bytes > budget // 2:
            # Not all that may run has room: the rest waits, as it does for blocks.
            num_parts = max(self.parts_of_one, budget // CACHED_WINDOWS_DIVISOR // self.window_bytes)
        else:
            left = budget - num_parts * self.window_bytes
            num_parts += left // CACHED_WINDOWS_DIVISOR // self.window_bytes
        if num_parts >= num_blocks:
            return whole
        num_blocks = (budget - num_parts * self.window_bytes) // self.base_bytes
        return PoolSizes(num_blocks=min(MAX_BLOCKS, num_blocks), num_window_parts=num_parts)
