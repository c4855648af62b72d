#!/usr/bin/env python3
"""Prints a table of the lines of code by folder: production and tests, of the working tree or since a commit.

    scripts/lines.py            counts all tracked files
    scripts/lines.py main~5     counts what was added and removed since `main~5`

Counts every line of Rust, Python, TypeScript, style sheets and proto files, except those that a tool generated.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = (".rs", ".py", ".pyi", ".proto", ".ts", ".tsx", ".css")
TEST = re.compile(r"(^|/)(tests|integration-tests|testdata|fuzz)/|(^|/)(test_\w+|conftest)\.py$")
GENERATED = re.compile(r"/(generated|_proto|dist)/")
# Folders whose parts have rows of their own.
DIVIDED = ("router", "kernels", "server/trunkline_server", "server")


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def is_counted(path: str) -> bool:
    return path.endswith(SOURCE) and not GENERATED.search(path)


def folder(path: str) -> str:
    """Returns the row of the table that `path` counts in, such as `router/kv`."""
    for divided in sorted(DIVIDED, key=len, reverse=True):
        if path.startswith(divided + "/"):
            rest = path.removeprefix(divided + "/")
            return f"{divided}/{rest.split('/')[0]}" if "/" in rest else divided
    return path.split("/")[0]


def whole() -> dict[str, int]:
    """Returns the number of lines of each source file."""
    names = git("ls-files", "-z").split("\0")
    return {name: (ROOT / name).read_bytes().count(b"\n") for name in names if name and is_counted(name)}


def changed(base: str) -> dict[str, int]:
    """Returns the number of lines that each source file has gained (or lost, if negative) since the commit `base`."""
    gained: Counter[str] = Counter()
    for line in git("diff", "--numstat", "--no-renames", base).splitlines():
        added, removed, name = line.split("\t")
        if added != "-" and is_counted(name):
            gained[name] += int(added) - int(removed)
    return gained


def main() -> None:
    lines = changed(sys.argv[1]) if len(sys.argv) > 1 else whole()
    rows: dict[str, Counter[str]] = {}
    for name, count in lines.items():
        rows.setdefault(folder(name), Counter())["tests" if TEST.search(name) else "production"] += count
    rows = {name: row for name, row in rows.items() if any(row.values())}
    print(f"{'folder':40}{'production':>12}{'tests':>10}")
    for name, row in sorted(rows.items()):
        print(f"{name:40}{row['production']:12,}{row['tests']:10,}")
    production, tests = (sum(row[kind] for row in rows.values()) for kind in ("production", "tests"))
    print(f"{'total':40}{production:12,}{tests:10,}")


if __name__ == "__main__":
    main()
