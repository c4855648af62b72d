"""CPU time of the threads of a process."""

from __future__ import annotations

from pathlib import Path


def thread_seconds(pid: int) -> dict[str, float]:
    """Returns the CPU seconds of all living threads, summed by thread name."""
    seconds: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            # The fields are nanoseconds on a core, nanoseconds waiting for one, and number of time slices.
            on_core = int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds[name] = seconds.get(name, 0.0) + on_core / 1e9
    return seconds
