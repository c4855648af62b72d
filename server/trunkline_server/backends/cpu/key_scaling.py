"""The file that keeps int4's key scaling beside the packed weights. kernels/core/src/kv_pool explains the scaling."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 32
# Upper bound for any model's file; a larger file is not read.
_MAX_BYTES = 1 << 28


class KeyScalingFile:
    """One file: a hash of the rest, then f32 little-endian. path: named after all that determines the numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> bytes | None:
        """Returns the numbers, or None if there is no file. A damaged file is logged and counts as none."""
        try:
            if self.path.stat().st_size > _MAX_BYTES:
                raise OSError(f"`{self.path}` has more than {_MAX_BYTES} bytes")
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("ignoring the cached key scaling: %s", error)
            return None
        digest, numbers = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if digest != _digest(numbers):
            logger.warning("ignoring the cached key scaling: `%s` is damaged", self.path)
            return None
        return numbers

    def keep(self, numbers: bytes) -> None:
        """Writes the file atomically. A failure is logged, and the next start measures again."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=".key-scaling-", delete=False) as file:
                try:
                    file.write(_digest(numbers) + numbers)
                    file.flush()
                    os.fsync(file.fileno())
                    Path(file.name).replace(self.path)
                except OSError:
                    Path(file.name).unlink()
                    raise
        except OSError as error:
            logger.warning("cannot cache the key scaling: %s", error)


def _digest(numbers: bytes) -> bytes:
    return hashlib.blake2b(numbers, digest_size=_DIGEST_BYTES).digest()
