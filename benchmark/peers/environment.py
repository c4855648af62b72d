"""A Python environment of its own for each peer, under .peers/, made by uv from pinned requirements."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".peers"
REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
INSIDE = Path(__file__).resolve().parent / "inside"
UV = ROOT / ".tools/bin/uv"
INSTALL_LIMIT_S = 3600.0
# Nothing but packages is downloaded, and nobody is told.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class InstallError(RuntimeError):
    """A peer could not be installed; the message says why."""


def clean_environ() -> dict[str, str]:
    """The environment for a peer: no setting of ours, no network."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRUNKLINE_", "PYTHON", "VIRTUAL_ENV"))}
    return kept | OFFLINE


def run(command: Sequence[str | Path], log: Path, *, env: dict[str, str] | None = None) -> None:
    """Runs one step of an installation; its output goes to `log`, the last line of it into the error."""
    with log.open("ab") as out:
        out.write(f"$ {' '.join(str(c) for c in command)}\n".encode())
        out.flush()
        try:
            subprocess.run(command, stdout=out, stderr=out, check=True, env=env, timeout=INSTALL_LIMIT_S)
        except (subprocess.SubprocessError, OSError) as failure:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise InstallError(f"{Path(command[0]).name}: {failure}; last line: {lines[-1][:300]}") from failure


@dataclass(frozen=True)
class Environment:
    """`.peers/<name>` from `requirements/<name>.txt`, which pins every package in it."""

    name: str

    @property
    def folder(self) -> Path:
        return PEERS / self.name

    @property
    def python(self) -> Path:
        return self.folder / "env/bin/python"

    @property
    def requirements(self) -> Path:
        return REQUIREMENTS / f"{self.name}.txt"

    def fingerprint(self, recipe: str = "") -> str:
        return hashlib.sha256(self.requirements.read_bytes() + recipe.encode()).hexdigest()[:16]

    def installed(self, recipe: str = "") -> bool:
        stamp = self.folder / ".stamp"
        return stamp.is_file() and stamp.read_text() == self.fingerprint(recipe)

    def install(self) -> Path:
        """Makes the environment; returns the log of it. `done` is for whoever has nothing more to install."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "install.log"
        log.write_bytes(b"")
        run([UV, "venv", "--quiet", "--allow-existing", "--python", sys.executable, self.folder / "env"], log)
        # The file names all there is to install: what a package asks for beyond it is left out on purpose.
        run([UV, "pip", "install", "--python", self.python, "--no-deps", "-r", self.requirements], log)
        return log

    def done(self, recipe: str = "") -> None:
        (self.folder / ".stamp").write_text(self.fingerprint(recipe))
