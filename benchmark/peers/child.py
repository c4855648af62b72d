"""A peer's process tree, with its log, memory and CPU time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from harness import descendants

STOP_S = 20.0
ERROR = re.compile(r"\b\w*Error\b|\berror:", re.IGNORECASE)


class Died(RuntimeError):
    """A peer's process exited or was not ready in time. The message has the end of its log."""


class Child:
    def __init__(self, command: Sequence[str | Path], log: Path, *, env: dict[str, str]) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log_path = log
        self._log = log.open("wb")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env=env,
            start_new_session=True,
        )

    def check(self) -> None:
        if self.process.poll() is not None:
            raise Died(f"exited with {self.process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        """Returns the last error in the log, or else its last line."""
        lines = [line.strip() for line in self.log_path.read_text(errors="replace").splitlines() if line.strip()]
        errors = [line for line in lines if ERROR.search(line) and "WARNING" not in line]
        return (errors or lines or ["the log is empty"])[-1][-300:]

    def pids(self) -> list[int]:
        return [self.process.pid, *descendants(self.process.pid)]

    def memory_bytes(self) -> int:
        """Returns the proportional set size of the whole tree, in which a shared page counts once."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        return total

    def cpu_s(self) -> float:
        """Returns the CPU seconds of the whole tree so far."""
        ticks = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Sends SIGTERM, then SIGKILL to the rest of the tree."""
        pids = self.pids()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(STOP_S)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()
