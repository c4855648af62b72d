"""Checks that dependencies have the same features in shipped packages as in tests.

Cargo unifies the features that all crates of a build request, and tests request more of them. If features differ, the
dependency and everything that depends on it is compiled twice, and the tests do not test what ships. See
`features/src/lib.rs`.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = ("trunkline-launcher", "trunkline-router", "trunkline-router-full", "trunkline-kernels-python")


def features(*selection: str) -> dict[str, set[str]]:
    """Returns crate and version → sets of features, each a comma-separated string."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p}|{f}", *selection]
    lines = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    found: dict[str, set[str]] = {}
    for line in lines:
        crate, _, enabled = line.removesuffix(" (*)").replace(" (proc-macro)", "").partition("|")
        # The features of this crate select those of the others, and may differ.
        if crate and not crate.startswith("trunkline-features "):
            found.setdefault(crate, set()).add(enabled)
    return found


def main() -> int:
    tested = features("--workspace", "--edges", "normal,dev")
    status = 0
    for package in SHIPPED:
        for crate, enabled in features("--package", package, "--edges", "normal").items():
            for shipped in enabled - tested.get(crate, enabled):
                status = 1
                print(f"{package}: {crate} has the features [{shipped}], but in tests {sorted(tested[crate])};")
                print("    hint: enable the missing ones in features/Cargo.toml or in the workspace's dependencies")
    return status


if __name__ == "__main__":
    sys.exit(main())
