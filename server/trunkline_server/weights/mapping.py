"""Read-only memory mappings of files."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from trunkline_server.errors import DamagedFile, ModelNotFound


class MappedFile:
    """The bytes of one file. Pages are read on access; the mapping lives as long as this object or a view of it.

    status: the file's status when it was opened.
    Raises ModelNotFound if the file cannot be opened, and DamagedFile if it is empty.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self.status = os.fstat(file.fileno())
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise ModelNotFound(f"`{path}` does not exist") from None
        except OSError as error:
            raise ModelNotFound(f"cannot read `{path}`: {error.strerror or error}") from error
        except ValueError:  # mmap refuses length 0
            raise DamagedFile(path, "the file is empty") from None
        self.bytes = memoryview(self._map)

    @property
    def num_bytes(self) -> int:
        return self.bytes.nbytes

    @property
    def buffer(self) -> mmap.mmap:
        """Returns the mapping itself, for `struct.unpack_from` and for slicing into `bytes`."""
        return self._map
