"""K and V of all layers in blocks, f32."""

from __future__ import annotations

import torch


class KvPool:
    """keys, values: [layers, num_blocks * B, G, D] f32; slot = block_id * B + offset."""

    def __init__(self, *, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_size: int) -> None:
        self.block_size = block_size
        self.num_blocks = num_blocks
        shape = (num_layers, num_blocks * block_size, num_kv_heads, head_size)
        self.keys = torch.zeros(shape)
        self.values = torch.zeros(shape)

    @property
    def bytes_per_block(self) -> int:
        return 2 * self.keys[:, : self.block_size].numel() * self.keys.element_size()

    def slots(self, block_ids: list[int], num_positions: int) -> torch.Tensor:
        """Slots of the first `num_positions` positions of a block table, [num_positions]."""
        starts = torch.tensor(block_ids, dtype=torch.int64) * self.block_size
        return (starts[:, None] + torch.arange(self.block_size)).reshape(-1)[:num_positions]

    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        """Copies the first positions of a block onto another, all layers."""
        source, destination = source_block_id * self.block_size, destination_block_id * self.block_size
        for pool in (self.keys, self.values):
            pool[:, destination : destination + num_tokens] = pool[:, source : source + num_tokens]
