"""A Python environment for each peer under .peers/, created by uv from pinned requirements."""

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
# Peers download only packages and send no telemetry.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class InstallError(RuntimeError):
    """A peer could not be installed. The message has the reason."""


def clean_environ() -> dict[str, str]:
    """Returns environment variables for a peer, offline and without Trunkline's settings."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TRUNKLINE_", "PYTHON", "VIRTUAL_ENV"))}
    return kept | OFFLINE


def run(command: Sequence[str | Path], log: Path, *, env: dict[str, str] | None = None) -> None:
    """Runs one step of an installation with its output in `log`. The error has the log's last line."""
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
    """The folder `.peers/<name>`, installed from `requirements/<name>.txt`, which pins every package."""

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
        """Creates the environment and returns its log. The caller calls `done` when it has nothing more to install."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "install.log"
        log.write_bytes(b"")
        run([UV, "venv", "--quiet", "--allow-existing", "--python", sys.executable, self.folder / "env"], log)
        # The file lists everything to install; other dependencies are left out on purpose.
        run([UV, "pip", "install", "--python", self.python, "--no-deps", "-r", self.requirements], log)
        return log

    def done(self, recipe: str = "") -> None:
        (self.folder / ".stamp").write_text(self.fingerprint(recipe))
