"""A disk that a test makes slow or full while a server runs, without privileges and without code in the server."""

from __future__ import annotations

import mmap
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("slow_disk.c")


class Disk:
    """Controls the library of slow_disk.c, which servers preload if they are started with `env`."""

    def __init__(self, folder: Path) -> None:
        library, control = folder / "slow_disk.so", folder / "slow_disk.control"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True, timeout=60)
        control.write_bytes(bytes(20))
        self.env = {"LD_PRELOAD": str(library), "CHAOS_DISK": str(control)}
        with control.open("r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), 20)).cast("I")

    def slow(self, delay_s: float) -> None:
        """Delays each read and write of the store."""
        self._words[0] = round(delay_s * 1e6)

    def fill(self, is_full: bool) -> None:
        """Refuses writes of the store as a full disk does, or takes them again."""
        self._words[1] = is_full

    @property
    def num_delayed(self) -> int:
        return self._words[2]

    @property
    def num_refused(self) -> int:
        return self._words[3]

    @property
    def num_written(self) -> int:
        return self._words[4]
