"""What `pip install` would take, installed in an empty environment and asked a question."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness
import pytest
from harness import ROOT, embedded_gguf, serving

# `make lint` compares what is built for wheels with what is tested; building them takes minutes.
pytestmark = [pytest.mark.alone, pytest.mark.full]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of a new environment that holds the two wheels and what they need, nothing of this tree."""
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
