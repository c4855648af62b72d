"""The parts of a start and their times, which `telemetry.py` exports once the shard computes."""

from __future__ import annotations

import time

# Names and nanoseconds since 1970. A start has few parts, and threads may note them.
_parts: list[tuple[str, int, int]] = []


def now() -> int:
    """Returns the nanoseconds since 1970."""
    return time.time_ns()


def note(name: str, began_ns: int) -> None:
    """Notes a part that began then and ends now."""
    _parts.append((name, began_ns, now()))


def parts() -> list[tuple[str, int, int]]:
    return list(_parts)
