"""CPU backends of tiny models, without torch, whose import would cost child processes seconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
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
