"""How keys are scaled for int4, kept beside the packed weights: what it is, and why, says kernels/src/kv_pool."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from pathlib import Path

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 32
# What a file of another model's shape could be at most: nobody reads more.
_MAX_BYTES = 1 << 28


class KeyScalingFile:
    """One file: a hash of the rest, then f32 little-endian. path: named after what the numbers are a function of."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> bytes | None:
        """The numbers, or None if there are none or the file is not whole, which is logged."""
        try:
            if self.path.stat().st_size > _MAX_BYTES:
                raise OSError(f"it has more than {_MAX_BYTES} bytes")
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            logger.warning("the kept scaling of keys is of no use: %s", error)
            return None
        digest, numbers = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if digest != _digest(numbers):
            logger.warning("the kept scaling of keys is of no use: `%s` has changed or is not whole", self.path)
            return None
        return numbers

    def keep(self, numbers: bytes) -> None:
        """Writes the file, whole or not at all. A failure is logged: the next start measures again."""
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
            logger.warning("the scaling of keys is not kept: %s", error)


def _digest(numbers: bytes) -> bytes:
    return hashlib.blake2b(numbers, digest_size=_DIGEST_BYTES).digest()
