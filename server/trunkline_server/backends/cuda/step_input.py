"""The inputs of a step: one host buffer, copied at once to a device buffer that is divided into tensors.

The division depends only on the step's shape, so a replayed step finds its tensors where they were when it was
captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from trunkline_server.backends.cuda.kernels.attention_plan import fits_in_splits
from trunkline_server.backends.cuda.kernels.low_rank import TILE_ROWS, AdapterRows
from trunkline_server.backends.cuda.state_pool import NO_STATES, ChunkStates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int32]

# Tensors begin at multiples of this many 4-byte words, because kernels read 16 bytes at once.
ALIGNMENT_WORDS = 4


@dataclass(frozen=True, slots=True, order=True)
class StepShape:
    """Sizes to which a step is padded.

    num_rows: tokens; num_entries: chunks; num_logits: rows whose logits are needed.
    is_decode: every chunk is one token, and attention computes all of them in splits.
    num_adapters: 0 if no chunk has an adapter, otherwise the number of slots.
    """

    num_rows: int
    num_entries: int
    num_logits: int
    is_decode: bool = False
    num_adapters: int = 0

    @property
    def num_adapter_tiles(self) -> int:
        """The most tiles of `AdapterRows`."""
        num_groups = min(self.num_entries, self.num_adapters)
        return min(self.num_rows, self.num_rows // TILE_ROWS + num_groups) if num_groups else 0

    def holds(self, other: StepShape) -> bool:
        """Returns True if a step of shape `other` can be padded to this shape."""
        return (
            self.num_rows >= other.num_rows
            and self.num_entries >= other.num_entries
            and self.num_logits >= other.num_logits
            and (other.is_decode or not self.is_decode)
            and self.num_adapters == other.num_adapters
        )


@dataclass(frozen=True, slots=True)
class StepTensors:
    """The inputs of one shape, on the device, i32.

    token_ids: [T], negative if the token is still on the device (`fill_tokens`); positions: [T]; slots, row_entry: [T],
    -1 in padding rows. block_tables: [S, max_blocks]; query_begin: [S + 1]; context_length: [S], 0 in padding entries.
    sampling_rows: [R]. state_source: [S], the state before a chunk, and kept_state: [T], that which keeps the state
    behind a row; -1 for none. second_text: [S], position of the second of two texts, or 0.
    """

    shape: StepShape
    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    row_entry: torch.Tensor
    query_begin: torch.Tensor
    context_length: torch.Tensor
    sampling_rows: torch.Tensor
    block_tables: torch.Tensor
    state_source: torch.Tensor
    kept_state: torch.Tensor
    second_text: torch.Tensor
    # None if no chunk has an adapter.
    adapter_rows: AdapterRows | None
    # The step's chunks, if it is launched. None for captured tensors, which are replayed for other steps.
    entries: Sequence[Entry] | None = None


class AdapterUse(NamedTuple):
    """The adapter of a sequence. scale: a factor of what it adds."""

    slot: int
    scale: float


@dataclass(frozen=True, slots=True)
class Entry:
    """One chunk of a step.

    token_ids: of its rows, -1 - i for the token that row i of the previous step sampled.
    logit_rows: its rows, from 0, whose logits are needed.
    states: that it reads and writes, if layers are recurrent. second_text: position of the second of two texts, or 0.
    adapter: None if it has none.
    """

    token_ids: Sequence[int]
    first_position: int
    block_ids: Sequence[int]
    logit_rows: Sequence[int]
    states: ChunkStates = NO_STATES
    second_text: int = 0
    adapter: AdapterUse | None = None


def shape_of(entries: Sequence[Entry], max_partial_rows: int, num_adapters: int = 0) -> StepShape:
    """Returns the shape of a step without padding. max_partial_rows: of the attention plans. num_adapters: slots."""
    num_logits = sum(len(entry.logit_rows) for entry in entries)
    num_rows = sum(len(entry.token_ids) for entry in entries)
    is_decode = num_rows == len(entries) and fits_in_splits(
        (entry.first_position + 1 for entry in entries), max_partial_rows
    )
    has_adapters = num_adapters > 0 and any(entry.adapter is not None for entry in entries)
    return StepShape(num_rows, len(entries), max(1, num_logits), is_decode, num_adapters if has_adapters else 0)


class StepLayout:
    """The places of one shape's tensors in a buffer of words."""

    def __init__(self, shape: StepShape, max_blocks: int) -> None:
        self.shape = shape
        self.max_blocks = max_blocks
        rows, entries = shape.num_rows, shape.num_entries
        sizes = {
            "token_ids": rows, "positions": rows, "slots": rows, "row_entry": rows, "query_begin": entries + 1,
            "context_length": entries, "sampling_rows": shape.num_logits, "block_tables": entries * max_blocks,
            "state_source": entries, "kept_state": rows, "second_text": entries,
        }  # fmt: skip
        if shape.num_adapters:
            sizes |= {"tiles": 3 * shape.num_adapter_tiles, "adapted_rows": rows, "scales": rows}
        self._places: dict[str, tuple[int, int]] = {}
        end = 0
        for name, size in sizes.items():
            self._places[name] = end, end + size
            end = -(-(end + size) // ALIGNMENT_WORDS) * ALIGNMENT_WORDS
        self.num_words = end

    def tensors(self, buffer: torch.Tensor) -> StepTensors:
        """Returns the tensors in a device buffer."""
        parts: dict[str, Any] = {name: buffer[begin:end] for name, (begin, end) in self._places.items()}
        parts["block_tables"] = parts["block_tables"].view(self.shape.num_entries, self.max_blocks)
        adapter_rows = None
        if self.shape.num_adapters:
            tiles, rows, scales = (parts.pop(name) for name in ("tiles", "adapted_rows", "scales"))
            adapter_rows = AdapterRows(tiles.view(-1, 3), rows, scales.view(torch.float32))
        return StepTensors(self.shape, **parts, adapter_rows=adapter_rows)

    def write(self, words: Ints, entries: Sequence[Entry], block_size: int) -> None:
        """Writes a step into a host buffer, padding included."""
        parts = {name: words[begin:end] for name, (begin, end) in self._places.items()}
        tables = parts["block_tables"].reshape(self.shape.num_entries, self.max_blocks)
        for number, entry in enumerate(entries):
            tables[number, : len(entry.block_ids)] = entry.block_ids
        # Writes all rows at once: a decode has hundreds of one-row entries, and the device waits for the host.
        num_entries = len(entries)
        lengths = np.array([len(entry.token_ids) for entry in entries], dtype=np.int32)
        firsts = np.array([entry.first_position for entry in entries], dtype=np.int32)
        begins = np.zeros(num_entries + 1, dtype=np.int32)
        np.cumsum(lengths, out=begins[1:])
        num_rows = int(begins[-1])
        row_entry = np.repeat(np.arange(num_entries, dtype=np.int32), lengths)
        positions = np.arange(num_rows, dtype=np.int32) + (firsts - begins[:-1])[row_entry]
        blocks, offsets = np.divmod(positions, np.int32(block_size))
        logit_rows = [
            begin + row for entry, begin in zip(entries, begins[:-1].tolist(), strict=True) for row in entry.logit_rows
        ]
        parts["token_ids"][:num_rows] = list(chain.from_iterable(entry.token_ids for entry in entries))
        parts["positions"][:num_rows] = positions
        parts["slots"][:num_rows] = tables[row_entry, blocks] * np.int32(block_size) + offsets
        parts["row_entry"][:num_rows] = row_entry
        parts["query_begin"][:num_entries] = begins[:-1]
        parts["context_length"][:num_entries] = firsts + lengths
        parts["sampling_rows"][: len(logit_rows)] = logit_rows
        for name, value in (("token_ids", 0), ("positions", 0), ("slots", -1), ("row_entry", -1)):
            parts[name][num_rows:] = value
        parts["query_begin"][num_entries:] = num_rows
        parts["context_length"][num_entries:] = 0
        parts["sampling_rows"][len(logit_rows) :] = 0
        parts["state_source"][:] = -1
        parts["kept_state"][:] = -1
        parts["second_text"][:num_entries] = [entry.second_text for entry in entries]
        parts["second_text"][num_entries:] = 0
        for number, entry in enumerate(entries):
            if entry.states is not NO_STATES:
                parts["state_source"][number] = entry.states.source
                for row, state in entry.states.kept:
                    parts["kept_state"][begins[number] + row] = state
        if self.shape.num_adapters:
            _write_adapters(parts, entries, row_entry)


def _write_adapters(parts: dict[str, Ints], entries: Sequence[Entry], row_entry: Ints) -> None:
    """Writes the parts of `AdapterRows`. row_entry: of the rows without padding."""
    slots = np.array([0 if entry.adapter is None else entry.adapter.slot for entry in entries], dtype=np.int32)
    scales = np.array([0 if entry.adapter is None else entry.adapter.scale for entry in entries], dtype=np.float32)
    slots = slots[row_entry]
    rows = np.argsort(slots, kind="stable")[np.count_nonzero(slots == 0) :]
    tiles: list[tuple[int, int, int]] = []
    end = 0
    for slot, count in zip(*np.unique(slots[rows], return_counts=True), strict=True):
        first, end = end, end + count
        tiles += [(slot, begin, min(begin + TILE_ROWS, end)) for begin in range(first, end, TILE_ROWS)]
    parts["tiles"][:] = 0
    parts["tiles"][: 3 * len(tiles)] = list(chain.from_iterable(tiles))
    parts["adapted_rows"][: len(rows)] = rows
    parts["scales"][: len(rows)].view(np.float32)[:] = scales[row_entry[rows]]
