"""Time that the threads of a process take of the cores."""

from __future__ import annotations

from pathlib import Path


def thread_seconds(pid: int) -> dict[str, float]:
    """By name, in seconds since each began; those of one name are added up. A thread that ends is not counted on."""
    seconds: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            # Nanoseconds on a core, nanoseconds of waiting for one, turns.
            on_core = int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds[name] = seconds.get(name, 0.0) + on_core / 1e9
    return seconds
