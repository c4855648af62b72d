"""Moves compiled kernels to another machine: python -m gpu.compiled_cache TRITON_CACHE_DIR ARCHIVE.

Triton keeps each kernel in a folder named by a hash of its own files, of ptxas's version and of the kernel's source,
line and constants, so the same versions and the same checkout find it on another machine. Only the list of a kernel's
files has absolute paths, which is written anew.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path

CARRIED = (".cubin", ".json")
_GROUP = "__grp__"


def pack(cache: Path, archive: Path) -> int:
    """Writes the compiled kernels of Triton's cache folder into a tar.gz; returns their number."""
    kernels = list(cache.glob("*/*.cubin"))
    with tarfile.open(archive, "w:gz") as tar:
        for kernel in kernels:
            for file in sorted(kernel.parent.iterdir()):
                if file.suffix in CARRIED and not file.name.startswith(_GROUP):
                    tar.add(file, arcname=f"{file.parent.name}/{file.name}")
    return len(kernels)


def unpack(archive: Path, cache: Path) -> int:
    """Adds an archive's kernels to Triton's cache folder; returns their number."""
    with tarfile.open(archive) as tar:
        tar.extractall(cache, filter="data")
        kernels = [cache / name for name in tar.getnames() if name.endswith(".cubin")]
    for kernel in kernels:
        about = kernel.with_suffix(".json")
        paths = {file.name: str(file.absolute()) for file in (kernel, about)}
        (kernel.parent / f"{_GROUP}{about.name}").write_text(json.dumps({"child_paths": paths}))
    return len(kernels)


if __name__ == "__main__":
    print(pack(Path(sys.argv[1]), Path(sys.argv[2])), "kernels")
