"""How many threads compute where `--threads` does not say."""

from __future__ import annotations

import os
from pathlib import Path

# More threads than this wait for each other longer than they compute; whoever knows better says `--threads`.
MAX_DEFAULT_THREADS = 64


def default_threads(root: Path = Path("/")) -> int:
    """One thread per physical core that this process may run on, and not more than its cgroup's CPU quota."""
    usable = _physical_cores(os.sched_getaffinity(0), root)
    quota = _cgroup_quota(root)
    return max(1, min(usable, MAX_DEFAULT_THREADS, usable if quota is None else quota))


def _physical_cores(cpus: set[int], root: Path) -> int:
    """Threads of one core share its units, so a second one on it adds nothing but a longer wait at each barrier."""
    cores = set()
    for cpu in cpus:
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            cores.add(path.read_text().strip())
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def _cgroup_quota(root: Path) -> int | None:
    """Whole CPUs, rounded down, that the quota allows (v2's `cpu.max`, v1's `cpu.cfs_quota_us`); None: no quota."""
    cgroup = root / "sys/fs/cgroup"
    for text in (
        _read(cgroup / "cpu.max"),
        f"{_read(cgroup / 'cpu/cpu.cfs_quota_us')} {_read(cgroup / 'cpu/cpu.cfs_period_us')}",
    ):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period) > 0:
            return max(1, int(quota) // int(period))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
