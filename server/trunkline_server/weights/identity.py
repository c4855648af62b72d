"""Identifies weights without reading all of their bytes. The identity is the key of data cached for them.

For each weight file, the identity covers its size, inode, modification and status times, its header (names, shapes and
places of all tensors), and `NUM_SAMPLES` pages spread over it. For each other file it covers all bytes. It costs about
a millisecond when the file is in memory, and `NUM_SAMPLES` small reads when it is not.

Files with different bytes must have different identities. Every write through the operating system updates the status
time (`ctime`), which no program can set back. A changed file therefore differs even if its size, its modification time
and all samples are unchanged. The exceptions are

- a change within the same tick of the file system's clock, after the file was read: `is_settled` is False for a file
  that changed so recently, and its data must not be cached;
- a clock that was set back to the same nanosecond, a disk edited below its file system, a file system without status
  times, and a writer that has the file mapped writable while it is read. Only samples and header can reveal these.

The device number is left out, because overlay and network mounts get a new one each time.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trunkline_server.weights.mapping import MappedFile

DIGEST_BYTES = 32
NUM_SAMPLES = 64
_PAGE_BYTES = 4096
# Linux stamps files with the time of the last tick, at most 10 ms ago.
_FINE_TICK_NS = 50_000_000
# File systems without nanoseconds stamp in units of one or two seconds.
_COARSE_TICK_NS = 3_000_000_000
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """Identity of a model's files.

    digest: `DIGEST_BYTES` that stand for the content of the files; is_settled: no file changed just before it was read.
    """

    digest: bytes
    is_settled: bool
    _statuses: tuple[tuple[Path, os.stat_result], ...]

    def still_holds(self) -> bool:
        """Returns True if the paths still lead to the files that were opened, unchanged."""
        try:
            return all(stamp(path.stat()) == stamp(status) for path, status in self._statuses)
        except OSError:
            return False


def identify(weight_files: Sequence[tuple[MappedFile, int]], other_files: Sequence[MappedFile] = ()) -> SourceIdentity:
    """Computes the identity of weight files, each given with its header size in bytes, and of other files."""
    now = time.time_ns()
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for file, header_bytes in weight_files:
        digest.update(repr((file.path.name, stamp(file.status), header_bytes)).encode())
        digest.update(file.bytes[:header_bytes])
        for offset in _sample_offsets(file.num_bytes):
            digest.update(file.bytes[offset : offset + _PAGE_BYTES])
    for file in other_files:
        digest.update(repr((file.path.name, file.num_bytes)).encode())
        digest.update(file.bytes)
    files = [file for file, _ in weight_files]
    return SourceIdentity(
        digest.digest(),
        all(is_settled(file.status, now) for file in files),
        tuple((file.path, file.status) for file in files),
    )


def stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_settled(status: os.stat_result, now_ns: int) -> bool:
    """Returns True if a change of the file after this moment would change its `stamp`."""
    is_coarse = status.st_mtime_ns % _SECOND_NS == 0 and status.st_ctime_ns % _SECOND_NS == 0
    age_ns = now_ns - max(status.st_mtime_ns, status.st_ctime_ns)
    return age_ns > (_COARSE_TICK_NS if is_coarse else _FINE_TICK_NS)


def _sample_offsets(num_bytes: int) -> range:
    """Returns the offsets of evenly spaced pages, up to the last one."""
    num_pages = max(1, -(-num_bytes // _PAGE_BYTES))
    step = max(1, (num_pages - 1) // (NUM_SAMPLES - 1))
    return range((num_pages - 1) % step * _PAGE_BYTES, num_pages * _PAGE_BYTES, step * _PAGE_BYTES)
