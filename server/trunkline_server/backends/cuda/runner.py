"""Runs the model on steps: pads them to the nearest captured shape and replays it, or launches each operation."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from trunkline_server.backends.cuda.device import Device, Graph
from trunkline_server.backends.cuda.step_input import Entry, StepLayout, StepShape, StepTensors, shape_of

logger = logging.getLogger(__name__)

# One forward pass. Returns logits [R, V] f32 of the rows that need them.
Forward = Callable[[StepTensors], torch.Tensor]

# Steps without a graph are padded to multiples of this many rows, so that kernels are compiled for few sizes.
ROW_MULTIPLE = 16


def decode_shapes(max_entries: int) -> list[StepShape]:
    """Returns the shapes to which decode-only steps are padded: 1, 2, 4, multiples of 8 to 64, of 16 to 256, of 64."""
    sizes, size = [], 1
    while size < max_entries:
        sizes.append(size)
        size += size if size < 8 else 8 if size < 64 else 16 if size < 256 else 64
    return [StepShape(size, size, size, is_decode=True) for size in [*sizes, max_entries]]


def chunk_shapes(max_rows: int, max_entries: int, max_logits: int) -> list[StepShape]:
    """Returns the shapes to which other steps are padded, with all entries: 4, 8, 16 and 32 rows for streams with
    drafts, then 64, 96, 128, 192, and from 256 rows on each at most a tenth larger than the one before.

    The scheduler sizes prompts beside decodes by time, so any number of rows occurs. Up to 256 rows a step mostly takes
    the time to read the weights; above, it takes time for each row, of which at most a tenth is padding.
    """
    sizes, size = [rows for rows in (4, 8, 16, 32, 64, 96, 128, 192) if rows < max_rows], 256
    while size < max_rows:
        sizes.append(size)
        size += max(size // 10 // ROW_MULTIPLE, 1) * ROW_MULTIPLE
    return [StepShape(size, min(max_entries, size), min(max_logits, size)) for size in [*sizes, max_rows]]


@dataclass(eq=False)
class StepRunner:
    """Runs steps on static input memory and captured graphs. A step with a graph allocates nothing.

    max_shape: the largest step; max_blocks: of a sequence; max_partial_rows: of the attention plans.
    """

    device: Device
    forward: Forward
    max_shape: StepShape
    max_blocks: int
    block_size: int
    max_partial_rows: int
    row_multiple: int = ROW_MULTIPLE

    def __post_init__(self) -> None:
        num_words = StepLayout(padded(self.max_shape, self.row_multiple), self.max_blocks).num_words
        self._host = [self.device.pinned(num_words) for _ in range(2)]
        self._on_device = torch.zeros(num_words, dtype=torch.int32, device=self.device.torch_device)
        self._turn = 0
        self._layouts: dict[StepShape, tuple[StepLayout, StepTensors]] = {}
        self._graphs: dict[StepShape, tuple[Graph, torch.Tensor]] = {}
        self.num_replayed = 0
        self.num_launched = 0

    def capture(self, shapes: Sequence[StepShape]) -> None:
        """Captures each shape, the largest first, so that smaller ones reuse its memory."""
        began = time.monotonic()
        for number, shape in enumerate(sorted(shapes, reverse=True), start=1):
            tensors = self._layout(shape)[1]
            self._input(shape, [])
            self.forward(tensors)
            self.device.wait()
            self._graphs[shape] = self._captured(tensors)
            fields = {"done": number, "of": len(shapes), "rows": shape.num_rows, "entries": shape.num_entries}
            logger.info("step captured", extra={"fields": fields | {"seconds": f"{time.monotonic() - began:.1f}"}})

    def _captured(self, tensors: StepTensors) -> tuple[Graph, torch.Tensor]:
        outputs: list[torch.Tensor] = []

        def work() -> None:
            outputs[:] = [self.forward(tensors)]

        graph = self.device.capture(work)
        return graph, outputs[0]

    def run(self, entries: Sequence[Entry], *, is_launched: bool = False) -> torch.Tensor:
        """Begins a step; returns logits [R, V] f32 of the rows that need them, in order, followed by padding rows.

        The result is valid until the next step. is_launched: launch operation by operation even if there is a graph.
        """
        needed = shape_of(entries, self.max_partial_rows, self.max_shape.num_adapters)
        fitting = [] if is_launched else [shape for shape in self._graphs if shape.holds(needed)]
        if fitting:
            # The smallest one, and rather a decode shape.
            shape = min(fitting, key=lambda shape: (shape.num_rows, not shape.is_decode))
            self._input(shape, entries)
            graph, logits = self._graphs[shape]
            graph.replay()
            self.num_replayed += 1
            return logits
        shape = padded(needed, self.row_multiple)
        self._input(shape, entries)
        self.num_launched += 1
        return self.forward(replace(self._layout(shape)[1], entries=entries))

    def _layout(self, shape: StepShape) -> tuple[StepLayout, StepTensors]:
        known = self._layouts.get(shape)
        if known is None:
            layout = StepLayout(shape, self.max_blocks)
            known = self._layouts[shape] = layout, layout.tensors(self._on_device)
        return known

    def _input(self, shape: StepShape, entries: Sequence[Entry]) -> None:
        """Writes a step and sends it to the device. The first of two steps has been copied when a third is written."""
        layout, _ = self._layout(shape)
        self._turn = 1 - self._turn
        host = self._host[self._turn]
        layout.write(host.numpy(), entries, self.block_size)
        self.device.copy(host[: layout.num_words], self._on_device[: layout.num_words])


def padded(shape: StepShape, multiple: int) -> StepShape:
    """Returns the shape to which a step without a graph is padded."""

    def up(size: int) -> int:
        return -(-size // multiple) * multiple

    sizes = up(shape.num_rows), up(shape.num_entries), up(shape.num_logits)
    return StepShape(*sizes, shape.is_decode, shape.num_adapters)
