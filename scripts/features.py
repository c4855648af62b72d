"""Tests that what ships is compiled with the features that the tests compile it with.

Cargo turns on what any crate of a build asks of a dependency, and tests ask for more than what ships. A dependency
whose features differ is compiled twice, with all that stands on it, and what is tested is not what ships: see
`features/src/lib.rs`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("trunkline-launcher", "trunkline-router", "trunkline-router-full", "trunkline-kernels-python")


def features(*selection: str) -> dict[str, set[str]]:
    """Crate and version -> its sets of features, a comma-separated string each."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p}|{f}", *selection]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, set[str]] = {}
    for line in lines:
        crate, _, its = line.removesuffix(" (*)").replace(" (proc-macro)", "").partition("|")
        # Its own are on by what ships, not in tests alone.
        if crate and not crate.startswith("trunkline-features "):
            found.setdefault(crate, set()).add(its)
    return found


def main() -> int:
    tested = features("--workspace", "--edges", "normal,dev")
    status = 0
    for package in SHIPPED:
        for crate, its in features("--package", package, "--edges", "normal").items():
            for shipped in its - tested.get(crate, its):
                status = 1
                print(f"{package}: {crate} has the features [{shipped}], in tests {sorted(tested[crate])};")
                print("    hint: turn the others on in features/Cargo.toml, or where the workspace names the crate")
    return status


if __name__ == "__main__":
    sys.exit(main())
