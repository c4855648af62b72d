"""Models that llama.cpp's `gguf-split` has divided into several files, `NAME-00001-of-00003.gguf` and so on.

Each file has its tensors and the keys `split.no` and `split.count`. Only the first has the other metadata.
"""

from __future__ import annotations

import re
from pathlib import Path

from trunkline_server.errors import DamagedFile, ModelNotFound
from trunkline_server.weights.gguf import GgufFile

_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
MAX_SPLITS = 1 << 10


def split_names(name: str) -> list[str]:
    """Returns the names of all files of a model, given that of any; the name itself for a file that is not divided."""
    match = _NAME.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]) <= MAX_SPLITS:
        return [name]
    count = int(match[3])
    return [f"{match[1]}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]


def open_splits(path: Path) -> list[GgufFile]:
    """Opens all files of a model, given the path of any of them. Raises ModelNotFound, DamagedFile."""
    files = [GgufFile(path)]
    count = files[0].metadata.get("split.count", 1)
    if count == 1:
        return files
    names = split_names(path.name)
    if len(names) != count:
        raise DamagedFile(
            path, f"metadata key `split.count` is {count}, but the name is not that of one of {count} files",
            hint="name the files as `gguf-split` does, such as `model-00001-of-00003.gguf`",
        )  # fmt: skip
    for name in names:
        if not path.with_name(name).is_file():
            raise ModelNotFound(f"`{path.with_name(name)}` is missing, one of {count} files of the model")
    files = [GgufFile(path.with_name(name)) for name in names]
    tensors: set[str] = set()
    for number, file in enumerate(files):
        if (found := (file.metadata.get("split.no"), file.metadata.get("split.count"))) != (number, count):
            raise DamagedFile(
                file.path, f"the file says that it is number {found[0]} of {found[1]} files, counted from 0"
            )
        if repeated := tensors & file.tensors.keys():
            raise DamagedFile(file.path, f"tensor `{min(repeated)}` is also in another of the files")
        tensors |= file.tensors.keys()
    return files
