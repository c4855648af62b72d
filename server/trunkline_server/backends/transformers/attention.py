"""Attention over K and V in blocks, behind transformers' interfaces for caches, masks and attention.

A forward pass computes a `Batch`: rows of any sequences, side by side as if they were one text. Each row attends by
itself, in shapes that depend only on its position, so the rows beside it cannot change its bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, Cache
from transformers.cache_utils import CacheLayerMixin
from transformers.masking_utils import sdpa_mask

from trunkline_server.backends.reference.kv_pool import Blocks
from trunkline_server.backends.reference.ops import ChunkRows

# The name of this attention in transformers' interfaces.
NAME = "trunkline"
# Arguments that say what the mask already says, or nothing about the result.
_IGNORED = {"cache_position", "is_causal", "position_ids", "sliding_window", "use_cache"}
_IGNORED |= {f"output_{what}" for what in ("attentions", "hidden_states", "router_logits")}


class NotSupported(Exception):
    """The model needs something that this backend lacks. The message continues "the model"."""


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one forward pass.

    token_ids, positions: [N], padding included. parts: runs of rows, each of one sequence. wanted: the rows whose
    logits are needed.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    parts: Sequence[ChunkRows]
    wanted: Sequence[int]

    @property
    def length(self) -> int:
        """Number of positions of the longest sequence."""
        return max(len(part.slots) for part in self.parts)


class PackedLayer(CacheLayerMixin):
    """One layer of a cache that stores K and V of a batch, and leaves it to attention to gather those of a sequence."""

    is_sliding = False

    def __init__(self, keys: torch.Tensor, values: torch.Tensor, batch: Batch) -> None:
        super().__init__()
        self.keys, self.values = keys, values
        self._batch = batch
        self.returned: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores K and V [1, G, N, D] of the rows and returns what attention takes."""
        slots = torch.cat([part.slots[part.first_position :] for part in self._batch.parts])
        for pool, states in ((self.keys, key_states), (self.values, value_states)):
            pool[slots] = states[0, :, : len(slots)].transpose(0, 1)
        self.returned = self._attended(key_states, value_states)
        return self.returned

    def _attended(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return keys, values

    def gathered(self, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns K and V [G, L, D] of these slots."""
        return self.keys[slots].transpose(0, 1), self.values[slots].transpose(0, 1)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._batch.length, 0

    def get_seq_length(self) -> int:
        raise NotSupported("asks for the length of a text, which rows of several sequences do not have")

    def get_max_length(self) -> int:
        return -1

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Does nothing: the blocks exist."""


class RowLayer(PackedLayer):
    """The same for a batch of one row. It returns K and V of the whole sequence, as an ordinary cache does."""

    def _attended(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values = self.gathered(self._batch.parts[0].slots)
        return keys[None], values[None]

    def get_seq_length(self) -> int:
        return self._batch.length - 1


class BatchCache(Cache):
    """The cache for the forward pass of a batch."""

    def __init__(self, layers: list[PackedLayer], batch: Batch) -> None:
        super().__init__(layers=layers)
        self._positions = batch.positions

    def get_query_offset(self, layer_idx: int = 0) -> torch.Tensor:
        """Returns what the makers of masks add to the index of each row to get its position."""
        return self._positions - torch.arange(len(self._positions))


class PagedAttention:
    """The attention of the running forward pass.

    is_packed: a batch may have several rows; else it has one.
    """

    def __init__(self, *, is_packed: bool) -> None:
        self._is_packed = is_packed
        self._num_calls = 0
        self._layers: list[PackedLayer] = []
        self._batch: Batch | None = None
        AttentionInterface.register(NAME, self._attention)

    def begin(self, pool: Blocks, batch: Batch) -> Cache:
        """Makes this the attention of the next forward pass, and returns its cache."""
        layer = PackedLayer if self._is_packed else RowLayer
        self._layers = [layer(keys, values, batch) for keys, values in zip(pool.keys, pool.values, strict=True)]
        self._batch, self._num_calls = batch, 0
        # The attention of another model may have replaced this one.
        AttentionInterface.register(NAME, self._attention)
        return BatchCache(self._layers, batch)

    def check_use(self) -> None:
        """Raises NotSupported unless the forward pass stored K and V of every layer and attended to them here."""
        num_stored = sum(layer.returned is not None for layer in self._layers)
        if num_stored < len(self._layers) or self._num_calls < num_stored:
            raise NotSupported("does not route attention through transformers' `AttentionInterface`")

    def _attention(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        position_bias: torch.Tensor | None = None,
        **others: Any,
    ) -> tuple[torch.Tensor, None]:
        """Computes what `eager` does for query [1, H, N, D], as [1, N, H, D]."""
        unknown = sorted(name for name, given in others.items() if given is not None and name not in _IGNORED)
        if unknown or dropout:
            what = ", ".join(f"`{name}`" for name in unknown or ["dropout"])
            raise NotSupported(f"passes {what} to attention, which this backend does not know")
        self._num_calls += 1
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        biases = [bias for bias in (attention_mask, position_bias) if bias is not None]
        if self._is_packed and any(bias.dtype != torch.bool for bias in biases):
            raise NotSupported("makes a bias for one text, which rows of several sequences do not have")
        mixed = value.new_zeros(1, query.shape[2], query.shape[1], value.shape[-1])
        for row, keys, values in self._rows(key, value):
            seen = [bias[0, :, row if bias.shape[2] > 1 else 0, : keys.shape[1]] for bias in biases]
            mixed[0, row] = _attend(query[0, :, row].contiguous(), keys, values, seen, scale, softcap, s_aux)
        return mixed, None

    def _rows(self, key: torch.Tensor, value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yields each row with K and V [G, L, D] of the positions up to its own."""
        if not self._is_packed:
            yield 0, key[0], value[0]
            return
        layer = next((layer for layer in self._layers if layer.returned is not None and layer.returned[0] is key), None)
        if layer is None or layer.returned is None or layer.returned[1] is not value or self._batch is None:
            raise NotSupported("changes keys or values after they were stored")
        for part in self._batch.parts:
            keys, values = layer.gathered(part.slots)
            for row in range(part.begin, part.end):
                length = part.first_position + row - part.begin + 1
                yield row, keys[:, :length], values[:, :length]


def _mask(**arguments: Any) -> torch.Tensor | None:
    """Returns a mask [1, 1, N, L] of bool, also where transformers would leave it to the attention function."""
    mask: torch.Tensor | None = sdpa_mask(
        **{**arguments, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    )
    return mask


def _attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    biases: Sequence[torch.Tensor],
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Computes attention of one row: query [H, D] over keys and values [G, L, D].

    biases: [1 or H, L] each, added to the scores; those of bool say which positions are seen. sinks: [H].
    """
    num_groups, num_heads = keys.shape[0], query.shape[0]
    scores = torch.bmm(query.view(num_groups, -1, query.shape[-1]), keys.transpose(1, 2)) * scale
    scores = scores.view(num_heads, -1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    for bias in biases:
        scores = scores.masked_fill(~bias, -torch.inf) if bias.dtype == torch.bool else scores + bias
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype)[:, None]], dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(values.dtype)[:, : keys.shape[1]]
    return torch.bmm(weights.reshape(num_groups, -1, weights.shape[-1]), values).view(num_heads, -1)


AttentionMaskInterface.register(NAME, _mask)
