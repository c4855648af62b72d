"""Reads a compiled kernel's resource use from its cubin."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import triton

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)")


@dataclass(frozen=True)
class Resources:
    """Resources of one thread. spilled_bytes: data outside its registers, in the stack and elsewhere."""

    registers: int
    spilled_bytes: int


def resources(cubin: Path) -> Resources:
    """Returns the resources of the only kernel in a file, from Triton's cuobjdump. Raises CalledProcessError."""
    usage = _said("cuobjdump", "--dump-resource-usage", cubin)
    found = _USAGE.search(usage)
    assert found is not None, usage
    return Resources(int(found[1]), int(found[2]) + int(found[3]))


def num_waits(cubin: Path) -> int:
    """Returns how many products of a warp group (wgmma) end with a wait for them. Raises CalledProcessError."""
    return len(re.findall(r"HGMMA.*gsb0", _said("nvdisasm", "-c", cubin)))


def _said(tool: str, option: str, cubin: Path) -> str:
    command = [Path(triton.__file__).parent / "backends/nvidia/bin" / tool, option, cubin]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
