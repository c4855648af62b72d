"""Without a GPU, Triton's kernels run in its interpreter, on CPU tensors."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Triton reads the variable when a kernel is decorated, including those of its own library.
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    assert "triton" not in sys.modules, "imported before it was told to interpret"
    os.environ["TRITON_INTERPRET"] = "1"

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmark"))


@pytest.fixture(autouse=True, scope="session")
def patched_once() -> None:
    """Patches once what Triton would patch for every launch, which would take most of the time."""
    from tests.cuda.quick_interpreter import patch_once

    patch_once()


@pytest.fixture(scope="session")
def device() -> str:
    """Returns the device of the kernels in this run: "cuda", or "cpu" in the interpreter."""
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def arithmetic_of_the_device() -> Iterator[None]:
    """Silences NumPy's warnings about infinities and NaN, which kernels treat as values."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder that the processes of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
