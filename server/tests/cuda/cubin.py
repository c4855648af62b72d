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
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    command = [tool, "--dump-resource-usage", cubin]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = _USAGE.search(usage)
    assert found is not None, usage
    return Resources(int(found[1]), int(found[2]) + int(found[3]))
