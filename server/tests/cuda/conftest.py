"""Where no GPU is, Triton's kernels run in its interpreter, on tensors of the CPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# Read when a kernel is decorated, so before any is imported.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels of this run work: "cuda", or "cpu" in the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tensors this small only lose time to torch's thread pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
