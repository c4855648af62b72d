"""Tries a loaded model on two short texts, to find out whether and how it can be served.

Torch promises nothing about the bits of a product's row when the number of rows changes. In practice they depend on the
number only through the choice of a kernel, which the shapes of the weights and the number of threads decide. So each
size of a batch is tried, with the rows in two orders, and only sizes whose results have the same bits are used.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import DynamicCache, PreTrainedModel

from trunkline_server.backends.reference.kv_pool import Blocks
from trunkline_server.backends.reference.ops import ChunkRows, Step
from trunkline_server.backends.transformers.attention import NotSupported
from trunkline_server.backends.transformers.runner import Runner

logger = logging.getLogger(__name__)

SIZES = (1, 8, 16, 32)
_NUM_TEXTS = 2
_TEXT_LENGTH = SIZES[-1] // _NUM_TEXTS
# Positions of each text that are computed row by row, which takes a forward pass for each row.
_NUM_FIRST = 4
# The median distance of a row's logits from those of plain transformers, over their spread. Rounding to bfloat16 and
# experts that change places by it stay below; a model that loses its history exceeds it.
_MAX_DISTANCE = 0.1


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The shapes of one layer's K and V: heads, and elements of a key and of a value."""

    num_heads: int
    key_size: int
    value_size: int


@dataclass(frozen=True, slots=True)
class Trial:
    """The findings about a model. sizes, is_packed: see `Runner`."""

    layers: Sequence[LayerShape]
    dtype: torch.dtype
    vocab_size: int
    sizes: Sequence[int]
    is_packed: bool

    @property
    def bytes_per_token(self) -> int:
        """Bytes of K and V of one position, in all layers."""
        elements = sum(layer.num_heads * (layer.key_size + layer.value_size) for layer in self.layers)
        return elements * self.dtype.itemsize

    def make_pool(self, num_blocks: int, block_size: int) -> Blocks:
        num_slots = num_blocks * block_size
        keys = [torch.zeros(num_slots, layer.num_heads, layer.key_size, dtype=self.dtype) for layer in self.layers]
        values = [torch.zeros(num_slots, layer.num_heads, layer.value_size, dtype=self.dtype) for layer in self.layers]
        return Blocks(block_size, keys, values)


@dataclass(frozen=True, slots=True)
class _Result:
    """The logits and the pool after a trial; row and slot of text t at position p are t * `_TEXT_LENGTH` + p."""

    logits: torch.Tensor
    pool: Blocks

    def has_bits_of(self, other: _Result, num_positions: int = _TEXT_LENGTH) -> bool:
        """Compares the first positions of each text."""
        rows = _rows(num_positions)
        mine, theirs = ([result.logits, *result.pool.keys, *result.pool.values] for result in (self, other))
        return all(torch.equal(one[rows], another[rows]) for one, another in zip(mine, theirs, strict=True))


def try_model(model: PreTrainedModel) -> Trial:
    """Tries a model, whose attention must be `eager`. Raises NotSupported, and whatever the model raises."""
    tokens = _tokens(model)
    with torch.inference_mode():
        layers, dtype = _layers(model, tokens)
        plain = model(input_ids=tokens, use_cache=False).logits.float().flatten(0, 1)
    trial = Trial(layers, dtype, plain.shape[-1], sizes=(1,), is_packed=False)
    result = _run(model, trial, tokens, 1, order=_rows(_NUM_FIRST))
    if not _is_close(result.logits, plain):
        raise NotSupported("computes another result token by token than for a text as a whole")
    if _has_experts(model):
        # An expert's product has as many rows as chose it, so its bits would depend on the other rows.
        return trial
    trial = replace(trial, is_packed=True)
    try:
        sizes = _equal_sizes(model, trial, tokens, plain)
    except (NotSupported, AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        logger.debug("the model takes no rows of several sequences at once: %s", error)
        sizes = ()
    return replace(trial, sizes=sizes) if sizes else replace(trial, is_packed=False)


def _equal_sizes(model: PreTrainedModel, trial: Trial, tokens: torch.Tensor, plain: torch.Tensor) -> Sequence[int]:
    """Returns the sizes that give rows the same bits in any order; none if they are wrong."""
    by_text = _rows(_TEXT_LENGTH)
    by_position = by_text.view(_NUM_TEXTS, -1).T.flatten()
    results: dict[int, _Result] = {}
    for size in SIZES[1:]:
        one, other = (_run(model, trial, tokens, size, order) for order in (by_text, by_position))
        if not _is_close(one.logits, plain):
            return ()
        if one.has_bits_of(other):
            results[size] = one
    groups = [[size for size, other in results.items() if other.has_bits_of(one)] for one in results.values()]
    group = max(groups, key=len, default=[])
    single = _run(model, trial, tokens, 1, order=_rows(_NUM_FIRST))
    return [1, *group] if group and results[group[0]].has_bits_of(single, _NUM_FIRST) else group


def _tokens(model: PreTrainedModel) -> torch.Tensor:
    """Returns the texts, [texts, positions]."""
    vocab_size = model.config.get_text_config().vocab_size
    return torch.randint(vocab_size, (_NUM_TEXTS, _TEXT_LENGTH), generator=torch.Generator().manual_seed(0))


def _rows(num_positions: int) -> torch.Tensor:
    """Returns the rows of the first positions of all texts, text by text."""
    return torch.arange(_NUM_TEXTS * _TEXT_LENGTH).view(_NUM_TEXTS, -1)[:, :num_positions].flatten()


def _layers(model: PreTrainedModel, tokens: torch.Tensor) -> tuple[list[LayerShape], torch.dtype]:
    """Returns the shapes and the dtype of K and V, as an ordinary cache gets them."""
    cache = DynamicCache()
    model(input_ids=tokens[:1, :1], past_key_values=cache, use_cache=True)
    if not cache.layers or not all(layer.is_initialized for layer in cache.layers):
        raise NotSupported("does not keep keys and values of each layer in the cache")
    shapes = [LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3]) for layer in cache.layers]
    return shapes, cache.layers[0].keys.dtype


def _has_experts(model: PreTrainedModel) -> bool:
    return any("expert" in f"{name} {type(module).__name__}".lower() for name, module in model.named_modules())


def _run(model: PreTrainedModel, trial: Trial, tokens: torch.Tensor, size: int, order: torch.Tensor) -> _Result:
    """Computes rows in this order, in batches of one size."""
    pool = trial.make_pool(_NUM_TEXTS, _TEXT_LENGTH)
    positions = order % _TEXT_LENGTH
    chunks = [
        ChunkRows(row, row + 1, position, torch.arange(slot - position, slot + 1))
        for row, (slot, position) in enumerate(zip(order.tolist(), positions.tolist(), strict=True))
    ]
    step = Step(tokens.flatten()[order], positions, chunks, torch.arange(len(order)))
    logits = torch.full((tokens.numel(), trial.vocab_size), torch.nan)
    logits[order] = Runner(model, pool, (size,), is_packed=trial.is_packed).run(step)
    return _Result(logits, pool)


def _is_close(logits: torch.Tensor, plain: torch.Tensor) -> bool:
    """Compares the rows that were computed."""
    rows = ~logits.isnan().any(-1)
    spread = (plain[rows] - plain[rows].mean(-1, keepdim=True)).norm(dim=-1)
    distances = (logits[rows] - plain[rows]).norm(dim=-1) / spread
    return bool(rows.any()) and bool(distances.median() < _MAX_DISTANCE)
