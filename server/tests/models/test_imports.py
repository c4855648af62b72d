"""Arrows point one way, and the serving path needs no torch."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import trunkline_server

PACKAGE = Path(trunkline_server.__path__[0])
# folder or file -> what of the package it may import.
ALLOWED = {
    "errors.py": set(),
    "models": {"errors", "models"},
    "weights": {"errors", "models", "weights"},
    "sampling": {"backends.interface", "errors", "sampling"},
    "backends/interface.py": set(),
    "backends/sequences.py": {"backends.interface", "errors"},
    "backends/host_memory.py": set(),
    "backends/store_files.py": {"_kernels", "backends.interface", "errors"},
    "backends/cuda": {
        "_kernels",
        "backends.cuda",
        "backends.host_memory",
        "backends.interface",
        "backends.late_masks",
        "backends.sequences",
        "backends.store_files",
        "errors",
        "models",
        "sampling",
        "weights",
    },
    "backends/reference": {
        "backends.interface",
        "backends.late_masks",
        "backends.reference",
        "backends.sequences",
        "errors",
        "models",
        "sampling",
        "weights",
    },
}


def imports_of(path: Path) -> set[str]:
    """Full names of all modules that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("part", ALLOWED)
def test_imports_point_one_way(part: str) -> None:
    root = PACKAGE / part
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    assert files
    for file in files:
        for name in imports_of(file):
            if name.startswith("trunkline_server."):
                inner = name.removeprefix("trunkline_server.")
                assert any(f"{inner}.".startswith(f"{allowed}.") for allowed in ALLOWED[part]), f"{file}: {name}"


def test_only_backends_on_torch_name_torch() -> None:
    on_torch = {PACKAGE / "backends" / name for name in ("reference", "cuda")}
    for file in PACKAGE.rglob("*.py"):
        if on_torch.isdisjoint(file.parents):
            assert not any(name.split(".")[0] == "torch" for name in imports_of(file)), file


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch that could be imported by accident")
def test_weights_models_and_sampling_load_no_torch() -> None:
    program = (
        "import sys, trunkline_server.weights.checkpoint, trunkline_server.weights.dequantize,"
        "trunkline_server.models.registry, trunkline_server.sampling.sampler;"
        "sys.exit('torch' in sys.modules)"
    )
    environment = {"PYTHONPATH": str(PACKAGE.parent)}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0
