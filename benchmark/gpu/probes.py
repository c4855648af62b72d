"""Measures the card's own limits, with which all figures are compared."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

REPEATS = 10


def best_seconds(device: str, work: Callable[[], object]) -> float:
    """Returns the seconds of the fastest of several runs of `work`, after one to warm up."""
    work()
    best = float("inf")
    for _ in range(REPEATS):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        best = min(best, time.perf_counter() - began)
    return best


def wait(device: str) -> None:
    """Waits until the device has finished all work."""
    if device == "cuda":
        torch.cuda.synchronize()


def probe(device: str, copy_bytes: int = 4 << 30, matrix: int = 8192) -> dict[str, float]:
    """Measures bytes per second, read and written by a copy, and operations per second of a bf16 matrix product."""
    source = torch.zeros(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = best_seconds(device, partial(target.copy_, source))
    del source, target
    left = torch.randn(matrix, matrix, device=device, dtype=torch.bfloat16)
    right = torch.randn(matrix, matrix, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(left)
    multiplied = best_seconds(device, lambda: torch.matmul(left, right, out=out))
    return {"bytes_per_s": 2 * copy_bytes / copied, "operations_per_s": 2.0 * matrix**3 / multiplied}
