"""The cores of a shard that shares its machine with others of the same server."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from trunkline_server import _kernels
from trunkline_server.errors import InvalidArgument

# The kernels' default is no larger, either (`kernels/src/cpus.rs`).
MAX_THREADS = 64


def take_part(lane: int, num_lanes: int) -> int:
    """Restricts this process, which has no other threads yet, to the lane's part of the cores that it may use, and
    returns the number of threads for it. Raises InvalidArgument.
    """
    cores = physical_cores(os.sched_getaffinity(0))
    part, num_threads = part_of(cores, _kernels.max_parallel_threads(), lane, num_lanes)
    os.sched_setaffinity(0, part)
    return num_threads


def part_of(cores: list[list[int]], max_threads: int, lane: int, num_lanes: int) -> tuple[list[int], int]:
    """Returns the CPUs of the lane's part of `cores`, and the number of threads for it. Raises InvalidArgument.

    All parts have the same number of cores, because the bits of some backends depend on the number of threads. Cores
    that are left over are the router's. max_threads: threads that can run at the same time, within the CPU quota.
    """
    num_usable = min(len(cores), max_threads)
    if num_lanes > num_usable:
        raise InvalidArgument(
            f"`--replicas` is {num_lanes}, but the number of cores that this server may use is {num_usable}",
            hint="each replica needs a core of its own",
        )
    size = len(cores) // num_lanes
    part = [cpu for core in cores[lane * size : (lane + 1) * size] for cpu in core]
    return part, min(size, max_threads // num_lanes, MAX_THREADS)


def physical_cores(cpus: Iterable[int], root: Path = Path("/")) -> list[list[int]]:
    """Groups CPUs by physical core, sorted by NUMA node and number, so that a part of them is close together.

    root: the folder that holds `sys`. Without its files, each CPU is a core.
    """
    cores: dict[tuple[int, int], list[int]] = {}
    for cpu in sorted(cpus):
        folder = root / f"sys/devices/system/cpu/cpu{cpu}"
        nodes = [int(path.name[len("node") :]) for path in folder.glob("node[0-9]*")]
        cores.setdefault((min(nodes, default=0), _first_sibling(folder, cpu)), []).append(cpu)
    return [cores[place] for place in sorted(cores)]


def _first_sibling(folder: Path, cpu: int) -> int:
    """Returns the lowest CPU of the same core, from a list such as `0,64` or `0-1`."""
    try:
        siblings = (folder / "topology/thread_siblings_list").read_text()
    except OSError:
        return cpu
    first = re.match(r"\d+", siblings)
    return cpu if first is None else int(first.group())
