#!/usr/bin/env python3
"""Runs test suites in order, each a make target, and leaves out those that nothing has changed since they passed.

    scripts/suites.py [--force] SUITE...

A suite's inputs are all files of the repository except those that cannot affect it. Their digest is kept in
`target/passed/` when the suite passes, so a change in one place repeats only what that change can break. A fresh clone
runs everything.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSED = ROOT / "target" / "passed"
# Suite -> folders that cannot affect it. Lint looks at every file, so it always runs.
UNRELATED: dict[str, tuple[str, ...]] = {
    "lint": (),
    "test-rust": ("server/", "integration-tests/", "benchmark/", "docs/", "scripts/"),
    "test-server": (
        *("launcher/", "object/", "fuzz/", "docs/", "integration-tests/"),
        *(f"router/{part}/" for part in ("src", "tests", "benches", "scheduler", "text", "grammar", "reply", "zmq")),
        *("kernels/tests/", "store/tests/", "router/kv/tests/"),
    ),
    "test-system": (
        *("server/tests/", "kernels/tests/", "store/tests/", "object/tests/", "launcher/tests/", "router/tests/"),
        *(f"router/{crate}/tests/" for crate in ("scheduler", "kv", "text", "reply")),
        *("fuzz/", "integration-tests/clients/"),
    ),
    "test-clients": (
        *("server/tests/", "kernels/tests/", "store/tests/", "object/tests/", "launcher/tests/", "router/tests/"),
        *(f"router/{crate}/tests/" for crate in ("scheduler", "kv", "text", "grammar", "reply")),
        *("fuzz/", "benchmark/", "docs/", "integration-tests/snapshots/", "integration-tests/test_"),
    ),
}


def files() -> list[str]:
    """Paths of all tracked and new files, relative to the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in names.split("\0") if name and (ROOT / name).is_file())


def digest(suite: str, names: list[str]) -> str:
    """Digest of everything that can change the outcome of `suite`: its files and the tools that build them."""
    hasher = hashlib.sha256(sys.version.encode())
    hasher.update(subprocess.run(["rustc", "--version"], capture_output=True, check=True).stdout)
    for name in names:
        # Prose for readers changes no test, except that the documents' own tests read docs/ and the README.
        if name.startswith(UNRELATED[suite]) or name in ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"):
            continue
        hasher.update(f"{name}\0".encode())
        hasher.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return hasher.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="run every suite")
    parser.add_argument("suites", nargs="+", choices=UNRELATED, metavar="SUITE")
    args = parser.parse_args()
    names = files()
    for suite in args.suites:
        wanted, stamp = digest(suite, names), PASSED / suite
        if not args.force and UNRELATED[suite] and stamp.exists() and stamp.read_text() == wanted:
            print(f"==== {suite}: nothing it depends on has changed since it passed (make test FORCE=1 runs it again)")
            continue
        print(f"==== {suite}", flush=True)
        begin = time.monotonic()
        status = subprocess.run(["make", "--no-print-directory", suite], cwd=ROOT).returncode
        if status != 0:
            print(f"==== {suite} failed after {time.monotonic() - begin:.0f} s", file=sys.stderr)
            return status
        PASSED.mkdir(parents=True, exist_ok=True)
        stamp.write_text(wanted)
        print(f"==== {suite} passed in {time.monotonic() - begin:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
