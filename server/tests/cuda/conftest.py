"""Without a GPU, Triton's kernels run in its interpreter, on CPU tensors. With one, `make gpu-check` runs few cases."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.tiers import first_of_each_kind

# Triton reads the variable when a kernel is decorated, including those of its own library.
if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    assert "triton" not in sys.modules, "imported before it was told to interpret"
    os.environ["TRITON_INTERPRET"] = "1"

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmark"))


# Less time than this is left for the report of a phase of `make gpu-check`.
MIN_LEFT_S = 15.0


def is_gpu_check() -> bool:
    """Returns True if this is a phase of `make gpu-check` on a GPU."""
    return "GPU_CHECK_PHASE" in os.environ and torch.cuda.is_available()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if is_gpu_check():
        items[:] = first_of_each_kind(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leaves out what has no time, so that a phase ends before it is killed, and says so in its results."""
    if is_gpu_check() and float(os.environ["GPU_CHECK_ENDS"]) - time.time() < MIN_LEFT_S:
        from gpu.lines import Lines

        lines = Lines(Path(os.environ["GPU_CHECK_RESULTS"]), os.environ["GPU_CHECK_PHASE"])
        lines.check(f"{item.name} ran", holds=False, detail="no time was left")
        pytest.skip("no time was left")


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
