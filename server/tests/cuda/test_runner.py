"""Capture, replay and inputs of steps, on a device that repeats what it captured."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
import torch
from tests.cuda.test_captured_models import CapturingDevice
from trunkline_server.backends.cuda.runner import StepRunner, chunk_shapes, decode_shapes
from trunkline_server.backends.cuda.step_input import Entry, StepShape, StepTensors

BLOCK_SIZE = 16
LARGEST = StepShape(256, 24, 24)
VOCAB = 3


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


def make(device: CapturingDevice, model: Model) -> StepRunner:
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
    device, model = CapturingDevice(), Model()
    runner = make(device, model)
    shapes = [*decode_shapes(24), *chunk_shapes(256, 24, 24)]
    runner.capture(shapes)
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
    device, model = CapturingDevice(), Model()
    runner = make(device, model)
    runner.capture([*decode_shapes(24), *chunk_shapes(256, 24, 24)])
    num_copies = device.num_copies
    logits = runner.run(entries)
    assert (device.num_replays, runner.num_replayed, runner.num_launched) == (1, 1, 0)
    assert model.shapes[-1] == expected
    # One copy to the device per step.
    assert device.num_copies == num_copies + 1
    # The graph used this step's rows.
    assert logits.shape[0] == expected.num_logits
    for number, entry in enumerate(entries):
        last = entry.first_position + len(entry.token_ids) - 1
        assert logits[number].tolist() == [entry.token_ids[-1], last, number]


def test_a_step_without_a_graph_is_launched() -> None:
    device, model = CapturingDevice(), Model()
    runner = make(device, model)
    runner.capture(decode_shapes(4))
    runner.run([chunk(5), decode(1)])
    # More logits than entries, from a prompt that is scored.
    runner.run([Entry([1, 2, 3], 0, [1], [0, 1, 2])])
    assert (runner.num_replayed, runner.num_launched, device.num_replays) == (0, 2, 0)
    assert model.shapes[-1] == StepShape(16, 16, 16)
