"""Runs a model over the rows of a step, in batches of sizes that give a row the same bits."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel

from trunkline_server.backends.reference.kv_pool import Blocks
from trunkline_server.backends.reference.ops import ChunkRows, Step
from trunkline_server.backends.transformers.attention import NAME, Batch, NotSupported, PagedAttention


class Runner:
    """Runs forward passes of a model over a pool.

    sizes: the numbers of rows that a batch may have, ascending. is_packed: see `PagedAttention`.
    """

    def __init__(self, model: PreTrainedModel, pool: Blocks, sizes: Sequence[int], *, is_packed: bool) -> None:
        self._model = model
        self._pool = pool
        self._sizes = sizes
        self._attention = PagedAttention(is_packed=is_packed)
        self._parameters = inspect.signature(model.forward).parameters
        model.set_attn_implementation(NAME)
        if model.config._attn_implementation != NAME:
            raise NotSupported("does not route attention through transformers' `AttentionInterface`")

    @torch.inference_mode()
    def run(self, step: Step) -> torch.Tensor:
        """Computes a step, writes its K and V to the pool, and returns the logits of `sampling_rows`, [S, V] f32."""
        return torch.cat([self._forward(batch) for batch in self._batches(step)]).float()

    def _forward(self, batch: Batch) -> torch.Tensor:
        """Returns the logits of the wanted rows."""
        cache = self._attention.begin(self._pool, batch)
        inputs: dict[str, Any] = {"input_ids": batch.token_ids[None], "past_key_values": cache, "use_cache": True}
        if "position_ids" in self._parameters:
            inputs["position_ids"] = batch.positions[None]
        wanted = torch.tensor(batch.wanted, dtype=torch.int64)
        if "logits_to_keep" not in self._parameters:
            logits: torch.Tensor = self._model(**inputs).logits[0, wanted]
        else:
            # The head computes its rows as the layers do: in one of the sizes.
            num_padding = self._size(len(wanted)) - len(wanted) if len(wanted) else 0
            kept = torch.nn.functional.pad(wanted, (0, num_padding))
            logits = self._model(**inputs, logits_to_keep=kept).logits[0, : len(wanted)]
        self._attention.check_use()
        return logits

    def _size(self, num_rows: int) -> int:
        """Returns the size of a batch for at most the largest number of rows."""
        return next(size for size in self._sizes if size >= num_rows)

    def _batches(self, step: Step) -> Iterator[Batch]:
        num_rows, wanted_rows = len(step.token_ids), step.sampling_rows.tolist()
        for begin in range(0, num_rows, self._sizes[-1]):
            end = min(begin + self._sizes[-1], num_rows)
            num_padding = self._size(end - begin) - (end - begin)
            yield Batch(
                token_ids=torch.nn.functional.pad(step.token_ids[begin:end], (0, num_padding)),
                positions=torch.nn.functional.pad(step.positions[begin:end], (0, num_padding)),
                parts=[part for rows in step.rows if (part := _part(rows, begin, end)) is not None],
                wanted=[row - begin for row in wanted_rows if begin <= row < end],
            )


def _part(rows: ChunkRows, begin: int, end: int) -> ChunkRows | None:
    """Returns the part of a chunk that lies between two rows of the step, relative to the first of them."""
    first, last = max(rows.begin, begin), min(rows.end, end)
    if first >= last:
        return None
    first_position = rows.first_position + first - rows.begin
    return ChunkRows(first - begin, last - begin, first_position, rows.slots[: first_position + last - first])
