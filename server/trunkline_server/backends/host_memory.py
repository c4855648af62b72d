"""The amounts of host memory that this process takes, and that are still available to it."""

from __future__ import annotations

import resource
from pathlib import Path

# What a shard's process takes before it has a model: interpreter, gRPC and kernels.
PROCESS_BYTES = 48 << 20


def process_memory(weight_bytes: int, root: Path = Path("/")) -> int:
    """Returns the bytes that this process takes beside the weights that it has loaded: at least `PROCESS_BYTES`, as
    mapped weights may not have been read yet.

    root: the folder that holds `proc`.
    """
    resident_pages = int((root / "proc/self/statm").read_text().split()[1])
    return max(PROCESS_BYTES, resident_pages * resource.getpagesize() - weight_bytes)


def available_memory(root: Path = Path("/")) -> int:
    """Returns the bytes that this process can still allocate: free or reclaimable memory, within the limits of its
    cgroups.

    root: the folder that holds `proc` and `sys`.
    """
    limits = [_system_available(root), *_cgroup_v2_left(root), *_cgroup_v1_left(root)]
    return max(0, min(limits))


def _system_available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    raise RuntimeError("the system's `/proc/meminfo` has no `MemAvailable`")


def _cgroup_v2_left(root: Path) -> list[int]:
    """Returns the bytes left in each group from this process's to the top. File pages are reclaimable and so free."""
    left = []
    for group in _groups(root, controller=""):
        folder = root / "sys/fs/cgroup" / group
        limit = _read_number(folder / "memory.max")
        used = _read_number(folder / "memory.current")
        if limit is not None and used is not None:
            left.append(limit - max(0, used - _file_pages(folder / "memory.stat", "active_file", "inactive_file")))
    return left


def _cgroup_v1_left(root: Path) -> list[int]:
    left = []
    for group in _groups(root, controller="memory"):
        folder = root / "sys/fs/cgroup/memory" / group
        limit = _read_number(folder / "memory.limit_in_bytes")
        used = _read_number(folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            pages = _file_pages(folder / "memory.stat", "total_active_file", "total_inactive_file")
            left.append(limit - max(0, used - pages))
    return left


def _groups(root: Path, *, controller: str) -> list[str]:
    """Returns this process's group and all above it, relative to the hierarchy's root, which comes last ("")."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except FileNotFoundError:
        return []
    for line in lines:
        _, controllers, group = line.split(":", 2)
        if controller in controllers.split(","):
            parts = [part for part in group.split("/") if part not in ("", "..")]
            return ["/".join(parts[:depth]) for depth in range(len(parts), -1, -1)]
    return []


def _file_pages(stat_path: Path, *names: str) -> int:
    try:
        lines = stat_path.read_text().splitlines()
    except OSError:
        return 0
    numbers = dict(line.split(maxsplit=1) for line in lines if " " in line)
    return sum(int(numbers.get(name, 0)) for name in names)


def _read_number(path: Path) -> int | None:
    """Reads the number in a cgroup file; None if there is no limit ("max") or no such file."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
