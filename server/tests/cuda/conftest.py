"""Where no GPU is, Triton's kernels run in its interpreter, on tensors of the CPU."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from tests.cuda.quick_interpreter import make_once

if TYPE_CHECKING:
    from tests.cuda.compiled import Compiled

# Triton reads it when a kernel is decorated, its own library's included.
assert "triton" not in sys.modules, "imported before it was told to interpret"
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

BENCHMARK = str(Path(__file__).resolve().parents[3] / "benchmark")


@pytest.fixture(autouse=True, scope="session")
def patched_once() -> None:
    """Else patching Triton's language for each launch, and making its types, takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARK)
        from gpu.interpreter import patch_once
    patch_once()
    if not torch.cuda.is_available():
        make_once()


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


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of this run of the tests have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def hopper(shared_folder: Path) -> dict[str, dict[str, Compiled]]:
    """Module of variants -> name -> kernel, compiled for Hopper."""
    from tests.cuda.compiled import compiled_once

    modules = ("attention_variants", "product_variants", "sampling_variants", "tier_variants")
    found: dict[str, dict[str, Compiled]] = {module: {} for module in modules}
    for name, kernel in compiled_once(shared_folder, modules).items():
        found[kernel.module][name] = kernel
    return found
