"""K and V of all layers in f32 blocks, unrounded or rounded as the CPU backend's int8 and int4 do."""

from __future__ import annotations

import torch

from trunkline_server.backends.reference.rounding import KeyScaling, to_bytes, to_levels, transform, untransform
from trunkline_server.backends.reference.turn import Turn

DTYPES = ("f32", "int8", "int4")


class Blocks:
    """K and V of all layers.

    keys, values: for each layer [num_blocks * B, G, D]; slot = block_id * B + offset.
    """

    def __init__(
        self, block_size: int, keys: torch.Tensor | list[torch.Tensor], values: torch.Tensor | list[torch.Tensor]
    ) -> None:
        self.block_size = block_size
        self.num_blocks = keys[0].shape[0] // block_size
        self.keys = keys
        self.values = values
        # By block: the states of recurrent layers behind the last position that was computed in it, by weight.
        self.states: dict[int, dict[str, torch.Tensor]] = {}

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in this pool, K and V of all layers."""
        return sum(layer[: self.block_size].nbytes for pool in (self.keys, self.values) for layer in pool)

    def slots(self, block_ids: list[int], num_positions: int) -> torch.Tensor:
        """Returns the slots of the first `num_positions` positions of a block table, [num_positions]."""
        starts = torch.tensor(block_ids, dtype=torch.int64) * self.block_size
        return (starts[:, None] + torch.arange(self.block_size)).reshape(-1)[:num_positions]

    def copy_block(self, source_block_id: int, destination_block_id: int, num_tokens: int) -> None:
        source, destination = source_block_id * self.block_size, destination_block_id * self.block_size
        if source_block_id in self.states:
            self.states[destination_block_id] = dict(self.states[source_block_id])
        for pool in (self.keys, self.values):
            for layer in pool:
                layer[destination : destination + num_tokens] = layer[source : source + num_tokens]


class KvPool(Blocks):
    """K and V of layers that are all alike.

    keys, values: [layers, num_blocks * B, G, D] f32. dtype: one of `DTYPES`; elements are rounded when stored but stay
    f32. key_scaling: for int4 only. latent_size: None stores values apart; otherwise they are the last elements of
    keys.
    """

    keys: torch.Tensor
    values: torch.Tensor

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        dtype: str = "f32",
        key_scaling: KeyScaling | None = None,
        latent_size: int | None = None,
    ) -> None:
        assert latent_size is None or dtype == "f32", "latents are not rounded"
        assert (dtype == "int4") == (key_scaling is not None)
        shape = (num_layers, num_blocks * block_size, num_kv_heads, head_size)
        super().__init__(block_size, torch.zeros(shape), torch.zeros(shape if latent_size is None else (num_layers, 0)))
        self._dtype = dtype
        self._key_scaling = key_scaling
        self._owns_values = latent_size is None
        if latent_size is not None:
            self.values = self.keys[..., head_size - latent_size :]

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block in this pool, whose rounded elements stay f32."""
        return (1 + self._owns_values) * self.keys[:, : self.block_size].numel() * self.keys.element_size()

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor | None, turn: Turn
    ) -> None:
        """Stores keys and values [T, G, D] in their slots, rounded to the dtype.

        values: None if they are parts of keys. turn: rotation of int4's key means.
        """
        if values is None:
            assert not self._owns_values, "only latents have no values of their own"
            self.keys[layer, slots] = keys
            return
        if self._dtype == "int8":
            keys, values = (untransform(to_bytes(transform(x))) for x in (keys, values))
        elif self._key_scaling is not None:
            keys = self._rounded_keys(layer, slots, keys, self._key_scaling, turn)
            values = untransform(to_levels(transform(values)))
        self.keys[layer, slots] = keys
        self.values[layer, slots] = values

    def _rounded_keys(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, scaling: KeyScaling, turn: Turn
    ) -> torch.Tensor:
        """Rounds keys as int4 does, after subtracting the mean of their block."""
        factor, mean = scaling.factor[layer], turn.to_blocks(scaling.mean[layer])
        moved = transform((keys - mean) * factor)
        is_first = (slots % self.block_size == 0)[:, None, None]
        return untransform(torch.where(is_first, to_bytes(moved), to_levels(moved))) / factor + mean
