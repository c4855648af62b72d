"""The wheels, installed into an empty environment, serve a request."""

from __future__ import annotations

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
    """The bin folder of a new environment with only the two wheels and their dependencies."""
    subprocess.run(["make", "wheel"], cwd=ROOT, check=True, capture_output=True, text=True, timeout=900)
    folder = tmp_path_factory.mktemp("wheel") / "venv"
    uv = ROOT / ".tools/bin/uv"
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
    python = folder / "bin/python"
    install = [uv, "pip", "install", "--quiet", "--python", python]
    subprocess.run([*install, "--require-hashes", "-r", ROOT / "requirements/serve.txt"], check=True)
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    assert len(wheels) == 2, wheels
    subprocess.run([*install, "--no-deps", "--no-index", *wheels], check=True)
    return folder / "bin"


def test_wheels_serve_from_an_empty_environment(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "TRUNKLINE", installed / "trunkline")
    with serving(model=str(embedded_gguf()), env={"PYTHONPATH": "", "PATH": "/usr/bin:/bin"}) as server:
        (shard,) = server.pids("trunkline_server")
        assert Path(f"/proc/{shard}/exe").readlink().name.startswith("python")
        assert str(installed) in " ".join(server.pids_commands())
        assert server.chat("What is two plus two?", max_tokens=8)["choices"][0]["message"]["content"]
