"""Steps of models can be captured: they read nothing on the host, and a replay finds each step's own inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import running
from tests.cuda.test_backend import BLOCK_SIZE, PROMPT, WITH_LOGPROBS
from tests.cuda.test_encoders import CASES, LONG, vectors, write_encoder
from tests.models.tiny import TinyModels
from tests.tiers import first, full
from torch.utils._python_dispatch import TorchDispatchMode
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.build import build
from trunkline_server.backends.cuda.device import Graph, HostDevice
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU captures steps itself")
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


class CapturingDevice(HostDevice):
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


def build_capturing(checkpoint: Checkpoint, device: CapturingDevice, num_sequences: int) -> CudaBackend:
    return build(
        checkpoint, device=device, dtype=torch.float32, block_size=BLOCK_SIZE, max_step_tokens=4,
        max_step_sequences=num_sequences, max_batch_total_tokens=16 * BLOCK_SIZE,
    )  # fmt: skip


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


@pytest.mark.parametrize("case", [full("bert"), "modernbert_classes"])
def test_replayed_steps_of_encoders(case: str, tmp_path: Path) -> None:
    checkpoint, texts = open_checkpoint(write_encoder(tmp_path, CASES[case])), [(LONG[:3], 0), (LONG[5:6], 0)]
    device = CapturingDevice()
    backend = build_capturing(checkpoint, device, num_sequences=2)
    for found, expected in zip(vectors(backend, texts), vectors(ReferenceBackend(checkpoint), texts), strict=True):
        np.testing.assert_allclose(found, expected, atol=2e-4)
    assert device.num_replays == 1
