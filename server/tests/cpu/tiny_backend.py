"""CPU backends of tiny models, without torch, whose import would cost child processes seconds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.plans import new_chunk, new_start
from tests.running import all_sampled
from trunkline_server._proto.shard_pb2 import SampledToken, SamplingParams
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.cpu.build import build
from trunkline_server.weights.checkpoint import Checkpoint, open_checkpoint

BLOCK_SIZE = 16
NUM_BLOCKS = 64
AVAILABLE_BYTES = 1 << 30


def build_tiny(checkpoint: Checkpoint, **changes: Any) -> CpuBackend:
    options: dict[str, Any] = {
        "threads": 1,
        "max_batch_total_tokens": NUM_BLOCKS * BLOCK_SIZE,
        "max_step_tokens": 128,
        "block_size": BLOCK_SIZE,
        "available_bytes": AVAILABLE_BYTES,
    }
    return build(checkpoint, **{**options, **changes})


def start(model: Path, folder: Path | None, **changes: int) -> CpuBackend:
    """Runs a start including its background work; packed weights are cached in the folder."""
    backend = build_tiny(open_checkpoint(model), weights_cache=folder, **changes)
    backend.after_start()
    return backend


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
    return found


class Sequences:
    """Runs sequences on a backend, each with its own blocks."""

    def __init__(self, backend: CpuBackend, seed: int) -> None:
        self.backend = backend
        order = list(range(NUM_BLOCKS))
        random.Random(seed).shuffle(order)
        self._blocks: Iterator[int] = iter(order)

    def blocks(self, num_tokens: int) -> list[int]:
        return [next(self._blocks) for _ in range(-(-num_tokens // BLOCK_SIZE))]

    def run(
        self, token_ids: list[int], cuts: list[int], num_output: int, sampling: SamplingParams
    ) -> list[SampledToken]:
        """Runs one sequence: its prompt cut at the given positions, then one token per step."""
        self.backend.start(new_start(1, token_ids, len(token_ids), sampling))
        blocks = self.blocks(len(token_ids) + num_output)
        output: list[SampledToken] = []
        edges = [0, *cuts, *range(len(token_ids), len(token_ids) + num_output)]
        for first, end in itertools.pairwise(edges):
            chunk = new_chunk(1, first, end - first, blocks if first == 0 else [], sample=end >= len(token_ids))
            output += all_sampled(self.backend.step([chunk]))
        self.backend.end(1)
        return output
