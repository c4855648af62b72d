"""Describes the machine, and its limits if they were measured."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path


def first_of_each_core(at_most: int | None = None) -> list[int]:
    """Returns one CPU of each physical core that this process may use, without hyperthreads."""
    cores: dict[str, int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings.read_text().strip() if siblings.is_file() else str(cpu), cpu)
    return list(cores.values())[:at_most]


def describe(threads: int) -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    named = {key.strip(): value.strip() for key, value in facts.items()}
    flags = set(named.get("flags", "").split())
    sets = [s for s in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile", "avx_vnni") if s in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return (
        f"{named.get('model name', platform.machine())}; {len(os.sched_getaffinity(0))} CPUs, {threads} threads; "
        f"{', '.join(sets) or 'no vector extension of note'}; {memory:.0f} GB; {platform.system()} {platform.release()}"
    )


def limits(path: Path) -> str:
    """Formats the limits written by `kernels/examples/limits` as a table, or a note if there are none."""
    if not path.is_file():
        return "The machine's own limits were not measured; hint: run `make bench NAME=limits`"
    measured = json.loads(path.read_text())
    rows = [(f"read {read['level']}", read, "GB/s") for read in measured["read"]]
    rows += [
        (f"{r['operation']}, {r['instruction_set']}: `{r['instruction']}`", r, "GMAC/s") for r in measured["rates"]
    ]
    table = [f"| {name} | {row['one_thread']:,.0f} | {row['all_threads']:,.0f} | {unit} |" for name, row, unit in rows]
    if steady := measured.get("fixed_work_ms"):
        table.append(f"| work that is always the same, p50 and p99 | | {steady['p50']:.1f}, {steady['p99']:.1f} | ms |")
    head = [
        "The machine's own limits (`make bench NAME=limits`):",
        "",
        "| | one thread | all threads | |",
        "|---|---|---|---|",
    ]
    return "\n".join([*head, *table])
