"""Where no GPU is, Triton's kernels run in its interpreter, on tensors of the CPU: see the conftest of all tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

BENCHMARK = str(Path(__file__).resolve().parents[3] / "benchmark")


@pytest.fixture(autouse=True, scope="session")
def patched_once() -> None:
    """Else patching Triton's language for each launch takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARK)
        from gpu.interpreter import patch_once
    patch_once()


@pytest.fixture(scope="session")
def device() -> str:
    """Where the kernels of this run work: "cuda", or "cpu" in the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def arithmetic_of_the_device() -> Iterator[None]:
    """Infinities and what is not a number are values to kernels: the device does not warn of them, nor may NumPy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    """Tensors this small only lose time to torch's thread pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
