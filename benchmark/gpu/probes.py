"""What the card itself does: the bounds that all figures are held against."""

from __future__ import annotations

import time
from functools import partial

import torch

REPEATS = 10


def best_seconds(device: str, work: object, repeats: int = REPEATS) -> float:
    """The quickest of several runs of `work`, a function without arguments, after one that is not counted."""
    assert callable(work)
    work()
    best = float("inf")
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        best = min(best, time.perf_counter() - began)
    return best


def wait(device: str) -> None:
    """Returns when the device has done all."""
    if device == "cuda":
        torch.cuda.synchronize()


def probe(device: str, copy_bytes: int = 4 << 30, matrix: int = 8192) -> dict[str, float]:
    """bytes_per_s: reading and writing by a copy; operations_per_s: of a bf16 product of square matrices."""
    source = torch.zeros(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copied = best_seconds(device, partial(target.copy_, source))
    del source, target
    left = torch.randn(matrix, matrix, device=device, dtype=torch.bfloat16)
    right = torch.randn(matrix, matrix, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(left)
    multiplied = best_seconds(device, lambda: torch.matmul(left, right, out=out))
    return {"bytes_per_s": 2 * copy_bytes / copied, "operations_per_s": 2.0 * matrix**3 / multiplied}
