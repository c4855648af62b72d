"""Capture, replay and inputs of steps, on a device that only records calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
import torch
from trunkline_server.backends.cuda.device import Device, Graph
from trunkline_server.backends.cuda.runner import StepRunner, chunk_shapes, decode_shapes
from trunkline_server.backends.cuda.step_input import Entry, StepShape, StepTensors

BLOCK_SIZE = 16
LARGEST = StepShape(256, 24, 24)
VOCAB = 3


@dataclass
class FakeGraph:
    device: BookDevice
    work: Callable[[], object]

    def replay(self) -> None:
        self.device.num_replays += 1
        self.work()


class BookDevice(Device):
    """Counts calls; a graph repeats its work when it is replayed, as on a GPU."""

    can_capture = True

    def __init__(self) -> None:
        super().__init__()
        self.num_captures = self.num_replays = 0
        self.copies: list[int] = []

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        self.copies.append(source.numel())
        super().copy(source, destination)

    def capture(self, work: Callable[[], object]) -> Graph:
        self.num_captures += 1
        work()
        return FakeGraph(self, work)


@dataclass
class Model:
    """Returns for each row that needs logits its token and position; records shapes and addresses."""

    shapes: list[StepShape] = field(default_factory=list)
    steps: list[StepTensors] = field(default_factory=list)
    logits: torch.Tensor = field(default_factory=lambda: torch.zeros(32, VOCAB))

    def __call__(self, step: StepTensors) -> torch.Tensor:
        self.shapes.append(step.shape)
        self.steps.append(step)
        rows = step.sampling_rows.long()
        said = torch.stack([step.token_ids[rows], step.positions[rows], step.row_entry[rows]], 1)
        return self.logits[: len(rows)].copy_(said)


def make(device: BookDevice, model: Model) -> StepRunner:
    return StepRunner(device, model, max_shape=LARGEST, max_blocks=20, block_size=BLOCK_SIZE, max_partial_rows=24)


def decode(number: int) -> Entry:
    return Entry([50 + number], 20 + number, [2 * number, 2 * number + 1, 40 + number], [0])


def chunk(num_tokens: int, first: int = 3) -> Entry:
    return Entry(range(100, 100 + num_tokens), first, range(1, 16), [num_tokens - 1])


def test_shapes_reach_every_size() -> None:
    for most in (1, 2, 7, 24, 100, 256):
        sizes = [shape.num_rows for shape in decode_shapes(most)]
        assert sizes == sorted(set(sizes))
        assert (sizes[0], sizes[-1]) == (1, most)
    assert chunk_shapes(1000, 8, 8)[-1] == StepShape(1000, 8, 8)
    assert chunk_shapes(16, 64, 64) == [StepShape(rows, rows, rows) for rows in (4, 8, 16)]
    sizes = [shape.num_rows for shape in chunk_shapes(4096, 8, 8)]
    assert sizes[:9] == [4, 8, 16, 32, 64, 96, 128, 192, 256]
    large = sizes[8:]
    assert all(larger - (size + 1) <= larger / 10 for size, larger in pairwise(large))
    # Graphs cost memory and time at start.
    assert len(large) <= 34


def test_each_shape_is_captured_once_the_largest_first() -> None:
    device, model = BookDevice(), Model()
    runner = make(device, model)
    shapes = [*decode_shapes(24), *chunk_shapes(256, 24, 24)]
    runner.capture(shapes)
    assert device.num_captures == len(shapes)
    # Twice each: first compiled, then captured.
    assert model.shapes[::2] == model.shapes[1::2] == sorted(shapes, reverse=True)


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ([decode(0)], StepShape(1, 1, 1, True)),
        ([decode(number) for number in range(5)], StepShape(8, 8, 8, True)),
        ([decode(number) for number in range(24)], StepShape(24, 24, 24, True)),
        # Too many splits for a decode: one of 24 contexts has two.
        ([Entry([1], 300, range(19), [0]), *map(decode, range(23))], StepShape(32, 24, 24)),
        ([chunk(5)], StepShape(8, 8, 8)),
        ([decode(0), chunk(30)], StepShape(32, 24, 24)),
        ([chunk(65)], StepShape(96, 24, 24)),
        ([chunk(97)], StepShape(128, 24, 24)),
        ([chunk(200), *(decode(number) for number in range(23))], StepShape(256, 24, 24)),
    ],
)
def test_a_step_replays_the_smallest_graph_that_holds_it(entries: list[Entry], expected: StepShape) -> None:
    device, model = BookDevice(), Model()
    runner = make(device, model)
    runner.capture([*decode_shapes(24), *chunk_shapes(256, 24, 24)])
    device.copies.clear()
    logits = runner.run(entries)
    assert (device.num_replays, runner.num_replayed, runner.num_launched) == (1, 1, 0)
    assert model.shapes[-1] == expected
    # One copy to the device per step.
    assert len(device.copies) == 1
    # The graph used this step's rows.
    assert logits.shape[0] == expected.num_logits
    for number, entry in enumerate(entries):
        last = entry.first_position + len(entry.token_ids) - 1
        assert logits[number].tolist() == [entry.token_ids[-1], last, number]


def test_a_step_without_a_graph_is_launched() -> None:
    device, model = BookDevice(), Model()
    runner = make(device, model)
    runner.capture(decode_shapes(4))
    runner.run([chunk(5), decode(1)])
    # More logits than entries, from a prompt that is scored.
    runner.run([Entry([1, 2, 3], 0, [1], [0, 1, 2])])
    assert (runner.num_replayed, runner.num_launched, device.num_replays) == (0, 2, 0)
    assert model.shapes[-1] == StepShape(16, 16, 16)


def test_captured_steps_find_their_tensors_where_they_were() -> None:
    device, model = BookDevice(), Model()
    runner = make(device, model)
    runner.capture(decode_shapes(24))
    captured = {step.shape: step.block_tables.data_ptr() for step in model.steps}
    for count in (1, 24, 3, 1, 17):
        runner.run([decode(number) for number in range(count)])
        step = model.steps[-1]
        assert step.block_tables.data_ptr() == captured[step.shape]
        assert step.block_tables.data_ptr() % 16 == 0


def test_padding_writes_nothing_and_has_no_entry() -> None:
    device, model = BookDevice(), Model()
    runner = make(device, model)
    runner.capture(chunk_shapes(256, 24, 24))
    runner.run([chunk(200) for _ in range(1)])
    runner.run([chunk(20, first=30), decode(3)])
    step = model.steps[-1]
    assert step.shape.num_rows == 32
    blocks = np.array(range(1, 16))
    slots = [int(blocks[position // BLOCK_SIZE]) * BLOCK_SIZE + position % BLOCK_SIZE for position in range(30, 50)]
    assert step.slots[:21].tolist() == [*slots, 7 * BLOCK_SIZE + 23 % BLOCK_SIZE]
    assert set(step.slots[21:].tolist()) == {-1}
    assert set(step.row_entry[21:].tolist()) == {-1}
    assert step.query_begin.tolist() == [0, 20, *[21] * 23]
    assert step.context_length.tolist() == [50, 24, *[0] * 22]
