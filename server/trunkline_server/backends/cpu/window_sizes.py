"""Divides the memory for K and V if blocks have two parts: docs/decisions/0015-windowed-layers.md."""

from __future__ import annotations

from dataclasses import dataclass

# If all layers of a model have windows, blocks take no memory in the shard, but some in the router.
MAX_BLOCKS = 1 << 20
# This share of the memory that running sequences leave goes to further window parts, for the ends of cached prefixes.
CACHED_WINDOWS_DIVISOR = 4


@dataclass(frozen=True, kw_only=True)
class PoolSizes:
    """The size of a pool. num_window_parts: None if blocks are in one piece."""

    num_blocks: int
    num_window_parts: int | None = None


@dataclass(frozen=True, kw_only=True)
class WindowNeed:
    """The needs of a model with windows. base_bytes, window_bytes: of a block's layers without and with a window."""

    base_bytes: int
    window_bytes: int
    window_size: int
    block_size: int
    max_positions: int
    max_step_tokens: int
    max_step_sequences: int

    @property
    def parts_of_window(self) -> int:
        """Most blocks that one window touches."""
        return self._blocks(self.window_size - 1) + 1

    @property
    def parts_of_one(self) -> int:
        """Parts for one sequence at full speed: its window, a whole step, and a block that it copies from."""
        return self.parts_of_window + self._blocks(self.max_step_tokens) + 1

    @property
    def parts_of_all(self) -> int:
        """Parts for the largest number of sequences, each with a block to write and one to copy from."""
        return self.max_step_sequences * (self.parts_of_window + 2) + self._blocks(self.max_step_tokens)

    def _blocks(self, num_positions: int) -> int:
        return -(-num_positions // self.block_size)

    def divide(self, num_blocks: int) -> PoolSizes:
        """Divides the memory of `num_blocks` blocks in one piece. Returns them undivided if two parts save nothing."""
        whole = PoolSizes(num_blocks=num_blocks)
        if self.window_size >= self.max_positions or self.parts_of_one >= num_blocks:
            return whole
        if self.base_bytes == 0:
            # Window parts are all the memory that a sequence takes, so the pool gets as many blocks as positions can
            # need, plus cached ones.
            positions = self.max_step_sequences * self._blocks(self.max_positions)
            return PoolSizes(num_blocks=min(MAX_BLOCKS, num_blocks + positions), num_window_parts=num_blocks)
        budget = num_blocks * (self.base_bytes + self.window_bytes)
        num_parts = self.parts_of_all
        if num_parts * self.window_bytes > budget // 2:
            # There is no room for all sequences at once; the others wait, as they do for blocks.
            num_parts = max(self.parts_of_one, budget // CACHED_WINDOWS_DIVISOR // self.window_bytes)
        else:
            left = budget - num_parts * self.window_bytes
            num_parts += left // CACHED_WINDOWS_DIVISOR // self.window_bytes
        if num_parts >= num_blocks:
            return whole
        num_blocks = (budget - num_parts * self.window_bytes) // self.base_bytes
        return PoolSizes(num_blocks=min(MAX_BLOCKS, num_blocks), num_window_parts=num_parts)
