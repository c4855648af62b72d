"""Capture and replay of steps: they read nothing on the host, and a replay finds each step's own inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import running
from tests.cuda.test_backend import BLOCK_SIZE, PROMPT, WITH_LOGPROBS
from tests.cuda.test_vectors import CASES, LONG, vectors, write_encoder
from tests.models.tiny import TinyModels
from tests.tiers import first, full
from torch.utils._python_dispatch import TorchDispatchMode
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.build import build
from trunkline_server.backends.cuda.device import Device, Graph
from trunkline_server.backends.cuda.runner import StepRunner, chunk_shapes, decode_shapes
from trunkline_server.backends.cuda.step_input import AdapterUse, Entry, StepShape, StepTensors
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

NUM_ADAPTERS = 4
LARGEST = StepShape(256, 24, 24, num_adapters=NUM_ADAPTERS)
VOCAB = 3
interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU captures steps itself")
_READS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "masked_select", "nonzero", "_unique2"}


class _NoHostReads(TorchDispatchMode):
    """Fails at operations whose results, or the shapes of them, the host would have to wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        is_masked = name == "index" and any(one is not None and one.dtype == torch.bool for one in args[1])
        assert name not in _READS and not is_masked, f"{func} reads the device's memory"
        return func(*args, **(kwargs or {}))


@dataclass
class _Graph:
    device: CapturingDevice
    work: Callable[[], object]

    def replay(self) -> None:
        self.device.num_replays += 1
        with _NoHostReads():
            self.work()


class CapturingDevice(Device):
    """Repeats captured work when it is replayed, which must read nothing on the host."""

    can_capture = True
    num_replays = num_copies = 0

    def copy(self, source: torch.Tensor, destination: torch.Tensor) -> None:
        self.num_copies += 1
        super().copy(source, destination)

    def capture(self, work: Callable[[], object]) -> Graph:
        graph = _Graph(self, work)
        graph.replay()
        self.num_replays = 0
        return graph


@pytest.mark.parametrize("read", [torch.Tensor.item, lambda x: x[x > 0], bool])
def test_reads_are_noticed(read: Callable[[torch.Tensor], object]) -> None:
    with pytest.raises(AssertionError, match="reads the device's memory"), torch.inference_mode(), _NoHostReads():
        read(torch.ones(1))


def build_capturing(checkpoint: Checkpoint, device: CapturingDevice, num_sequences: int, **options: Any) -> CudaBackend:
    return build(
        checkpoint, device=device, dtype=torch.float32, block_size=BLOCK_SIZE, max_step_tokens=4,
        max_step_sequences=num_sequences, max_batch_total_tokens=16 * BLOCK_SIZE, **options,
    )  # fmt: skip


@interpreted
@pytest.mark.parametrize(
    "case", first(["lfm2", "lfm2_moe", "granitemoehybrid", "qwen3_next", "deepseek_v3"], "granitemoehybrid")
)
def test_replayed_steps_find_their_inputs(case: str, tiny_model: TinyModels) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    device, prompt = CapturingDevice(), PROMPT[:9]
    backend = build_capturing(checkpoint, device, num_sequences=1)
    expected = running.run_alone(ReferenceBackend(checkpoint), prompt, [9], [0], WITH_LOGPROBS, num_decodes=1)
    found = running.run_alone(backend, prompt, [4, 2, 3], [5], WITH_LOGPROBS, num_decodes=1)
    running.assert_same(found, expected, atol=1e-4)
    assert device.num_replays == 4


@interpreted
@pytest.mark.parametrize("case", [full("bert"), "modernbert_classes"])
def test_replayed_steps_of_encoders(case: str, tmp_path: Path) -> None:
    checkpoint, texts = open_checkpoint(write_encoder(tmp_path, CASES[case])), [(LONG[:3], 0), (LONG[5:6], 0)]
    device = CapturingDevice()
    backend = build_capturing(checkpoint, device, num_sequences=2)
    for found, expected in zip(vectors(backend, texts), vectors(ReferenceBackend(checkpoint), texts), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4)
    assert device.num_replays == 1


@dataclass
class Model:
    """Returns for each row that needs logits its token and position; records shapes."""

    shapes: list[StepShape] = field(default_factory=list)
    logits: torch.Tensor = field(default_factory=lambda: torch.zeros(32, VOCAB))

    def __call__(self, step: StepTensors) -> torch.Tensor:
        self.shapes.append(step.shape)
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
        ([replace(decode(0), adapter=AdapterUse(2, 1.0)), decode(1)], StepShape(2, 2, 2, True, NUM_ADAPTERS)),
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
    shapes = [*decode_shapes(24), *chunk_shapes(256, 24, 24)]
    runner.capture([*shapes, *(replace(shape, num_adapters=NUM_ADAPTERS) for shape in shapes)])
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
