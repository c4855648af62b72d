"""Divides a step's attention among programs, once per step and on the device.

Absolute positions fix the order of all sums (`attention_tile.py`), so the division affects only speed and may depend on
anything. An entry with few new tokens is computed in parallel over its splits, whose results are merged. For an entry
with many, each program goes through all splits. An entry whose partial results do not fit the scratch space also goes
the second way, so the space may have any size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.attention_tile import last_seen
from trunkline_server.backends.cuda.kernels.card import Card

# Positions of a split. The bits of attention depend on it.
SPLIT = 256
# Entries with at most this many new tokens are computed in parallel over splits.
MAX_SPLIT_TOKENS = 64
# Rows (tokens times the query heads of one KV head) of a program's tile. On Hopper, four warps compute 64 rows of a
# product in both cases, so a row has the same bits in both.
SPLIT_ROWS = 64
WHOLE_ROWS = 128
_ITEM_FIELDS = 4
# An item for a split fills a sector of memory.
SPLIT_FIELDS = tl.constexpr(8)
_STORE_BLOCK = 128


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """Heads of a model: H query heads, G KV heads of size D. whole_rows, split_rows: rows of a tile of each kind."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    whole_rows: int = WHOLE_ROWS
    split_rows: int = SPLIT_ROWS

    def __post_init__(self) -> None:
        assert self.num_heads % self.num_kv_heads == 0, "query heads must be a multiple of KV heads"
        most = self.split_rows
        assert self.group <= most, f"{self.group} query heads share a KV head, but at most {most} may"

    @property
    def group(self) -> int:
        """Number of query heads that share a KV head."""
        return self.num_heads // self.num_kv_heads

    @property
    def split_tokens(self) -> int:
        """Tokens of a tile that computes one split."""
        return self.split_rows // self.group

    @property
    def whole_tokens(self) -> int:
        """Tokens of a tile that goes through all splits."""
        return self.whole_rows // self.group


def whole_rows_of(card: Card) -> int:
    """Returns the rows of a tile that goes through all splits.

    Except on Hopper, Triton distributes a row over warps by the tile's size, which changes the order in which its
    weights are added. Both kinds of tiles must then have the same size.
    """
    return WHOLE_ROWS if card.capability[0] == 9 else SPLIT_ROWS


def fits_in_splits(contexts: Iterable[int], max_partial_rows: int) -> bool:
    """Returns True if entries of one row with so many positions are all computed in splits, whatever the window."""
    return sum(-(-context // SPLIT) for context in contexts) <= max_partial_rows


class AttentionStep(NamedTuple):
    """The entries of a step, on the device, i32: S entries, with context_length 0 for padding.

    block_tables: [S, max_blocks]; query_begin: [S + 1], an entry's rows end where the next entry's begin;
    context_length: [S], positions after this step.
    """

    block_tables: torch.Tensor
    query_begin: torch.Tensor
    context_length: torch.Tensor


def rows_like(query: torch.Tensor, width: int) -> torch.Tensor:
    """Returns memory for results [T, width] of a query's rows. Rows of padding are not written."""
    # Zeroed on the CPU, because NumPy warns about later operations on uninitialised padding rows.
    make = torch.empty if query.is_cuda else torch.zeros
    return make(len(query), width, dtype=query.dtype, device=query.device)


@triton.jit
def _plan_kernel(
    step, counts, split_items, whole_items, merge_rows, num_entries, window, capacity,
    SPLIT: tl.constexpr, SHORT: tl.constexpr, SPLIT_TOKENS: tl.constexpr, WHOLE_TOKENS: tl.constexpr,
    ENTRIES: tl.constexpr, BLOCK: tl.constexpr, HAS_WINDOW: tl.constexpr, SEES_ALL: tl.constexpr,
):  # fmt: skip
    """Writes the items of one entry, program_id(0), behind those of earlier entries. window: 0 for none."""
    entries = tl.arange(0, ENTRIES)
    is_entry = entries < num_entries
    begins = tl.load(step.query_begin + entries, is_entry, other=0)
    ends = tl.load(step.query_begin + entries + 1, is_entry, other=0)
    contexts = tl.load(step.context_length + entries, is_entry, other=0)
    tokens = tl.where(contexts > 0, ends - begins, 0)
    firsts = tl.where(window > 0, tl.maximum(contexts - tokens - window + 1, 0), 0) // SPLIT
    splits = tl.where(tokens > 0, (contexts - 1) // SPLIT + 1 - firsts, 0)
    partials = tl.where(tokens <= SHORT, tokens * splits, 0)
    partial_ends = tl.cumsum(partials, axis=0)
    is_split = (tokens > 0) & (tokens <= SHORT) & (partial_ends <= capacity)
    num_split = tl.where(is_split, tl.cdiv(tokens, SPLIT_TOKENS) * splits, 0)
    num_whole = tl.where((tokens > 0) & (is_split == 0), tl.cdiv(tokens, WHOLE_TOKENS), 0)
    num_merge = tl.where(is_split, tokens, 0)

    entry = tl.program_id(0)
    is_mine, is_before = entries == entry, entries < entry
    if entry == 0:
        tl.store(counts, tl.sum(num_split, axis=0))
        tl.store(counts + 1, tl.sum(num_whole, axis=0))
        tl.store(counts + 2, tl.sum(num_merge, axis=0))
    num_tokens = tl.sum(tl.where(is_mine, tokens, 0), axis=0)
    context = tl.sum(tl.where(is_mine, contexts, 0), axis=0)
    row_begin = tl.sum(tl.where(is_mine, begins, 0), axis=0)
    first_split = tl.sum(tl.where(is_mine, firsts, 0), axis=0)
    first_partial = tl.sum(tl.where(is_mine, partial_ends - partials, 0), axis=0)

    # Parallel over splits: (entry, first token, split, index of its partial results, the entry's first row, its tokens
    # and context); tiles of a split are neighbours.
    num_items = tl.sum(tl.where(is_mine, num_split, 0), axis=0)
    item_begin = tl.sum(tl.where(is_before, num_split, 0), axis=0)
    num_tiles = tl.cdiv(num_tokens, SPLIT_TOKENS)
    for begin in range(0, num_items, BLOCK):
        items = begin + tl.arange(0, BLOCK)
        is_item = items < num_items
        split = items // num_tiles
        first_token, partial = (items % num_tiles) * SPLIT_TOKENS, first_partial + split * num_tokens
        fields = (entry, first_token, first_split + split, partial, row_begin, num_tokens, context)
        for field in tl.static_range(7):
            tl.store(split_items + (item_begin + items) * SPLIT_FIELDS + field, fields[field], is_item)

    # Whole: (entry, first token), the longest context first.
    num_items = tl.sum(tl.where(is_mine, num_whole, 0), axis=0)
    item_begin = tl.sum(tl.where(is_before, num_whole, 0), axis=0)
    for begin in range(0, num_items, BLOCK):
        items = begin + tl.arange(0, BLOCK)
        place = whole_items + (item_begin + items) * 4
        is_item = items < num_items
        tl.store(place, entry, is_item)
        tl.store(place + 1, (num_items - 1 - items) * WHOLE_TOKENS, is_item)

    # To merge: (row, its first partial result, distance to the next one, number of them).
    num_items = tl.sum(tl.where(is_mine, num_merge, 0), axis=0)
    item_begin = tl.sum(tl.where(is_before, num_merge, 0), axis=0)
    for begin in range(0, num_items, BLOCK):
        items = begin + tl.arange(0, BLOCK)
        place = merge_rows + (item_begin + items) * 4
        is_item = items < num_items
        position = context - num_tokens + items
        first = tl.where(window > 0, tl.maximum(position - window + 1, 0), 0) // SPLIT
        tl.store(place, row_begin + items, is_item)
        tl.store(place + 1, first_partial + (first - first_split) * num_tokens + items, is_item)
        tl.store(place + 2, num_tokens, is_item)
        tl.store(place + 3, last_seen(position, context, window, SEES_ALL, HAS_WINDOW) // SPLIT + 1 - first, is_item)


class AttentionPlan:
    """The items of one step for layers with the same window. Call `update` before the first of these layers.

    counts: i32 [3], numbers of split_items [n, 8] i32, whole_items and merge_rows ([n, 4] i32 each); see the kernel.
    max_partial_rows: that of the `AttentionSpace`. sees_all: rows see positions behind their own, as in encoders.
    """

    def __init__(
        self,
        shape: AttentionShape,
        *,
        max_rows: int,
        max_entries: int,
        max_partial_rows: int,
        window: int | None,
        device: torch.device | str,
        sees_all: bool = False,
    ) -> None:
        self.shape = shape
        self.window = window
        self.sees_all = sees_all
        self.max_partial_rows = max_partial_rows
        self._max_rows = max_rows
        self._max_entries = max_entries
        whole = self.max_whole_items(max_rows, max_entries)

        def table(num_items: int, num_fields: int = _ITEM_FIELDS) -> torch.Tensor:
            return torch.zeros(max(num_items, 1), num_fields, dtype=torch.int32, device=device)

        self.counts = torch.zeros(3, dtype=torch.int32, device=device)
        self.split_items = table(max_partial_rows, SPLIT_FIELDS.value)
        self.whole_items, self.merge_rows = table(whole), table(max_rows)

    def max_whole_items(self, num_rows: int, num_entries: int) -> int:
        """Returns the most tiles that a step with so many rows and entries has."""
        return num_rows // self.shape.whole_tokens + min(num_entries, num_rows)

    def update(self, step: AttentionStep, num_rows: int) -> None:
        """Computes the items of a step with num_rows rows, padding included. One launch, which does not read data."""
        num_entries = step.context_length.shape[0]
        assert num_rows <= self._max_rows and num_entries <= self._max_entries, "the step is larger than the plan"
        _plan_kernel[(num_entries,)](
            step, self.counts, self.split_items, self.whole_items, self.merge_rows, num_entries, self.window or 0,
            self.max_partial_rows,
            SPLIT=SPLIT, SHORT=MAX_SPLIT_TOKENS, SPLIT_TOKENS=self.shape.split_tokens,
            WHOLE_TOKENS=self.shape.whole_tokens, ENTRIES=triton.next_power_of_2(num_entries), BLOCK=_STORE_BLOCK,
            HAS_WINDOW=self.window is not None, SEES_ALL=self.sees_all, num_warps=4,
        )  # fmt: skip
