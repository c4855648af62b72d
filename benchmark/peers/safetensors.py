"""Converts the GGUF to a dequantised bf16 safetensors folder for peers that cannot read it."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from .environment import INSIDE, PEERS, Environment, clean_environ, run


def folder_of(gguf: Path) -> Path:
    with gguf.open("rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()[:12]
    return PEERS / "models" / f"{gguf.stem}-{fingerprint}"


def convert(gguf: Path, environment: Environment) -> None:
    """Creates the folder if it does not exist. `environment` must have transformers and gguf. Raises InstallError."""
    folder = folder_of(gguf)
    if folder.is_dir():
        return
    unfinished = folder.with_suffix(".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    run(
        [environment.python, INSIDE / "convert_gguf.py", gguf, unfinished],
        environment.folder / "convert.log",
        env=clean_environ(),
    )
    unfinished.rename(folder)
