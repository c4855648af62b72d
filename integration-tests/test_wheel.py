"""The wheels, installed into an empty environment, serve a request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import harness
import pytest
from harness import ROOT, embedded_gguf, serving

# Building the wheels takes minutes. `make lint` checks that they have the same features as the tests.
pytestmark = [pytest.mark.alone, pytest.mark.full]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment as in the image: the two wheels, their dependencies and the model."""
    subprocess.run(["make", "wheel"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=900)
    folder = tmp_path_factory.mktemp("wheel") / "venv"
    make = ["make", "image-environment", f"PREFIX={folder}", f"PYTHON={sys.executable}"]
    subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300)
    return folder / "bin"


def test_wheels_serve_from_an_empty_environment(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "TRUNKLINE", installed / "trunkline")
    with serving(model=str(embedded_gguf()), env={"PYTHONPATH": "", "PATH": "/usr/bin:/bin"}) as server:
        (shard,) = server.pids("trunkline_server")
        assert Path(f"/proc/{shard}/exe").readlink().name.startswith("python")
        assert str(installed) in " ".join(server.pids_commands())
        assert server.chat("What is two plus two?", max_tokens=8)["choices"][0]["message"]["content"]


# What an extra's package answers after it is installed. flash-attn is built without kernels, so that needs no compiler.
EXTRAS = {
    "otel": "from trunkline_server.otlp import Exporter; print(Exporter('http://127.0.0.1:1', 0) is not None)",
    "bitsandbytes": "from bitsandbytes.functional import quantize_4bit as q; print(q is not None)",
    "gpu": "import torch, triton; print(torch.version.cuda is not None)",
    "flash": "from importlib.metadata import version; print(version('flash-attn') >= '2.6')",
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_install_into_an_empty_environment(extra: str, installed: Path, tmp_path: Path) -> None:
    uv, python = str(ROOT / ".tools/bin/uv"), str(tmp_path / "bin/python")
    (wheel,) = (ROOT / "dist").glob("trunkline_server-*.whl")
    env = {**os.environ, "PYTHONPATH": "", "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE"}

    def run(*words: str) -> str:
        return subprocess.run(words, env=env, check=True, capture_output=True, text=True, timeout=900).stdout

    run(uv, "venv", "--python", sys.executable, str(tmp_path))
    if extra == "flash":
        run(uv, "pip", "install", "--python", python, "torch", "setuptools", "wheel", "packaging", "numpy")
    run(uv, "pip", "install", "--python", python, "--no-build-isolation-package", "flash-attn", f"{wheel}[{extra}]")
    assert run(python, "-c", EXTRAS[extra]).split()[-1] == "True"
    if extra != "otel":
        return
    # Extras that are not asked for are not installed.
    assert "torch" not in run(uv, "pip", "list", "--python", python)


def test_bill_of_materials_lists_packages_and_crates(installed: Path) -> None:
    found = json.loads((installed.parent / "sbom.cdx.json").read_text())["components"]
    names = {component["purl"].partition("@")[0] for component in found}
    assert {"pkg:pypi/trunkline-server", "pkg:pypi/numpy", "pkg:cargo/trunkline-router", "pkg:cargo/tonic"} <= names
    assert not any(name.startswith("pkg:pypi/torch") for name in names)
