"""Which weights they are, told without reading all of them: the key of what is kept of them.

An identity covers of each weight file its size, inode, times of change (content and status), its header (names, shapes
and places of all tensors), and `NUM_SAMPLES` pages spread over it; of each other file all bytes. It costs about a
millisecond when the file is in memory, and as many small reads when it is not.

When it could be wrong: a file whose bytes differ must have another identity. Every write through the system moves the
status time (`ctime`), which no program can set back, so a changed file differs even if its size, its modification time
and all samples are as before. Left are

- a change within the same tick of the clock that stamps files, after they were read: `is_settled` is False for a file
  that changed so recently, and then nothing may be kept;
- a clock that was set back to the same nanosecond, a disk edited below its file system, a file system that does not
  keep times of status, and a writer that holds the file mapped writable while it is read here. Of these only the
  samples and the header tell.

The device's number is left out: overlay and network mounts number anew each time.
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
# Linux stamps files with the time of the last tick: 10 ms at most.
_FINE_TICK_NS = 50_000_000
# File systems without nanoseconds stamp by one second, or two.
_COARSE_TICK_NS = 3_000_000_000
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """digest: `DIGEST_BYTES` that stand for the files' content. is_settled: no file changed just before it was read."""

    digest: bytes
    is_settled: bool
    _statuses: tuple[tuple[Path, os.stat_result], ...]

    def still_holds(self) -> bool:
        """Whether the files under the same paths are still those that were opened, unchanged."""
        try:
            return all(_stamp(path.stat()) == _stamp(status) for path, status in self._statuses)
        except OSError:
            return False


def identify(weight_files: Sequence[tuple[MappedFile, int]], other_files: Sequence[MappedFile] = ()) -> SourceIdentity:
    """The identity of weight files, with the bytes of their headers, and of files that count as a whole."""
    now = time.time_ns()
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for file, header_bytes in weight_files:
        digest.update(repr((file.path.name, _stamp(file.status), header_bytes)).encode())
        digest.update(file.bytes[:header_bytes])
        for offset in _sample_offsets(file.num_bytes):
            digest.update(file.bytes[offset : offset + _PAGE_BYTES])
    for file in other_files:
        digest.update(repr((file.path.name, file.num_bytes)).encode())
        digest.update(file.bytes)
    files = [file for file, _ in weight_files]
    return SourceIdentity(
        digest.digest(),
        all(_is_settled(file.status, now) for file in files),
        tuple((file.path, file.status) for file in files),
    )


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_settled(status: os.stat_result, now_ns: int) -> bool:
    is_coarse = status.st_mtime_ns % _SECOND_NS == 0 and status.st_ctime_ns % _SECOND_NS == 0
    age_ns = now_ns - max(status.st_mtime_ns, status.st_ctime_ns)
    return age_ns > (_COARSE_TICK_NS if is_coarse else _FINE_TICK_NS)


def _sample_offsets(num_bytes: int) -> range:
    """Of pages from the first to the last."""
    num_pages = max(1, -(-num_bytes // _PAGE_BYTES))
    step = max(1, (num_pages - 1) // (NUM_SAMPLES - 1))
    return range((num_pages - 1) % step * _PAGE_BYTES, num_pages * _PAGE_BYTES, step * _PAGE_BYTES)
