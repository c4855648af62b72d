"""The same weights for those that read no GGUF: dequantised to a bf16 safetensors folder, once per file."""

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
    """Makes the folder if it is not there; `environment` has transformers and gguf.

    Raises:
        InstallError: when the conversion fails.
    """
    folder = folder_of(gguf)
    if folder.is_dir():
        return
    made = folder.with_suffix(".new")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    run(
        [environment.python, INSIDE / "convert_gguf.py", gguf, made],
        environment.folder / "convert.log",
        env=clean_environ(),
    )
    made.rename(folder)
