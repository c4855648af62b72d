"""Writes GGUF files; `weights/gguf.py` describes the format."""

from __future__ import annotations

import os
import shutil
import struct
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias

from trunkline_server.errors import DoesNotFit
from trunkline_server.weights.gguf import ARRAY, BOOL, DEFAULT_ALIGNMENT, MAGIC, STRING, TENSOR_TYPES, VERSIONS
from trunkline_server.weights.tensor import stored_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_U32, _I32, _F32 = 4, 5, 6
Value = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int]
Data: TypeAlias = "bytes | memoryview | NDArray[np.uint8]"  # of bytes
# Receives bytes written and total bytes.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor of a file. shape: outermost first; read: returns its bytes, and is called once, from any thread."""

    name: str
    format: str
    shape: tuple[int, ...]
    read: Callable[[], Data]

    @property
    def num_bytes(self) -> int:
        return stored_bytes(self.format, self.shape)


def write(
    path: Path, metadata: Mapping[str, Value | bytes], entries: Sequence[Entry], progress: Progress = lambda *_: None
) -> None:
    """Writes a file under another name, which becomes `path` when it is whole. Raises DoesNotFit, OSError.

    metadata: `bytes` are a type and a value as another file has them.
    """
    header = _header(metadata, entries)
    total = len(header) + sum(_padded(entry.num_bytes) for entry in entries)
    free = shutil.disk_usage(path.parent).free
    if free < total:
        raise DoesNotFit(
            f"`{path}` takes {total >> 20} MiB, but the disk of its folder has {free >> 20} MiB left",
            hint="write it to another disk, or make room",
        )
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(header)
            _write_tensors(file, entries, lambda done: progress(len(header) + done, total))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_tensors(file: BinaryIO, entries: Sequence[Entry], progress: Callable[[int], None]) -> None:
    """Reads tensors in as many threads as there are cores, so only these are in memory, and writes them in order."""
    num_threads, done = os.cpu_count() or 1, 0
    pending: deque[tuple[Entry, Future[Data]]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="quantize") as pool:

        def write_first() -> int:
            entry, future = pending.popleft()
            data = future.result()
            num_written = file.write(data if isinstance(data, bytes | memoryview) else data.data)
            assert num_written == entry.num_bytes, f"{entry.name}: {num_written} bytes instead of {entry.num_bytes}"
            return num_written + file.write(bytes(_padded(num_written) - num_written))

        for entry in entries:
            pending.append((entry, pool.submit(entry.read)))
            if len(pending) > num_threads:
                done += write_first()
                progress(done)
        while pending:
            done += write_first()
            progress(done)


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT


def _header(metadata: Mapping[str, Value | bytes], entries: Sequence[Entry]) -> bytes:
    header = bytearray(MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(entries), len(metadata)))
    for key, value in metadata.items():
        header += _string(key) + (value if isinstance(value, bytes) else _typed(value))
    offset, type_ids = 0, {name: type_id for type_id, name in TENSOR_TYPES.items()}
    for entry in entries:
        shape = entry.shape[::-1]
        header += _string(entry.name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", type_ids[entry.format], offset)
        offset += _padded(entry.num_bytes)
    return bytes(header.ljust(_padded(len(header)), b"\0"))


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _typed(value: Value) -> bytes:
    """Returns type and value. Numbers in arrays are signed, as llama.cpp's reader of token types expects."""
    match value:
        case bool():
            return struct.pack("<I?", BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)
        case str():
            return struct.pack("<I", STRING) + _string(value)
    if not value or isinstance(value[0], str):
        kind, elements = STRING, b"".join(_string(str(element)) for element in value)
    elif isinstance(value[0], bool):
        kind, elements = BOOL, bytes(map(bool, value))
    else:
        kind, elements = _I32, struct.pack(f"<{len(value)}i", *value)
    return struct.pack("<IIQ", ARRAY, kind, len(value)) + elements
