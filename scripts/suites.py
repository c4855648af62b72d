#!/usr/bin/env python3
"""Runs test suites, each a make target, and skips those whose inputs have not changed since they last passed.

    scripts/suites.py [--force] SUITE...
    scripts/suites.py --budgets

A suite's inputs are all files of the repository except those that cannot affect it. Their digest is saved in
`target/passed/` when the suite passes, so a change reruns only the suites that it can affect. A new clone runs
everything. At its end the slowest tests of all suites are printed. Each suite has a budget of CPU seconds; `make lint`
fails if the last run of a suite exceeded it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree as ET
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PASSED = ROOT / "target" / "passed"
REPORTS = ROOT / "target" / "reports"
# The cost of the last run of each suite that passed, as `{suite: {"seconds": …, "cpu_seconds": …}}`.
COSTS = REPORTS / "costs.json"
# Suite → the most CPU seconds that it may take, builds included: twice what it takes on two cores of a Sapphire Rapids
# machine, because machines differ by a factor of two. Wall time would depend on other load.
BUDGETS = {
    "lint": 500,
    "test-rust": 400,
    "test-web": 160,
    "test-server": 760,
    "test-deploy": 10,
    "test-system": 900,
    "test-clients": 200,
}
NUM_SLOWEST = 20
# Suites that use one core, and so run concurrently with others.
CONCURRENT = ("test-clients",)
# Crates of the router whose tests are folders in them.
PURE = ("history", "residency", "scheduler", "kv", "text", "grammar", "reply")
# The router's other crates that no test of the Python server runs.
SERVING = ("api", "base", "draft", "engine", "full", "generation", "http")
# Suite → folders that cannot affect it. Lint reads every file, so it always runs.
UNRELATED: dict[str, tuple[str, ...]] = {
    "lint": (),
    # The router contains the built page.
    "test-rust": (
        *("server/", "integration-tests/", "benchmark/", "docs/", "deploy/", "scripts/"),
        *("web/src/", "web/tests/", "web/public/"),
    ),
    "test-web": (
        *("server/tests/", "kernels/", "store/", "object/", "launcher/tests/", "router/tests/", "fuzz/", "deploy/"),
        *(f"router/{crate}/tests/" for crate in PURE),
        *("integration-tests/", "benchmark/", "docs/", "scripts/", "requirements/"),
    ),
    "test-server": (
        *("launcher/", "terminal/", "object/", "fuzz/", "docs/", "deploy/", "integration-tests/", "web/"),
        *("bench/", "kernels/tests/", "store/tests/"),
        *(f"router/{part}/" for part in ("src", "tests", "benches", "otlp", "zmq", *SERVING)),
        # A test reads the tokenizers' expressions in `router/text/src`.
        *(f"router/{crate}/" for crate in PURE if crate != "text"),
        "router/text/tests/",
    ),
    "test-deploy": (
        *("router/", "launcher/", "server/", "kernels/", "store/", "object/", "fuzz/", "log/", "proto/", "contract/"),
        *("settings/", "features/", "terminal/", "benchmark/", "integration-tests/", "web/"),
    ),
    "test-system": (
        *("server/tests/", "kernels/tests/", "store/tests/", "object/tests/", "router/tests/"),
        *("launcher/tests/", "terminal/tests/"),
        *(f"router/{crate}/tests/" for crate in PURE if crate != "grammar"),
        *("fuzz/", "deploy/", "integration-tests/clients/", "web/src/", "web/tests/"),
    ),
    "test-clients": (
        *("server/tests/", "kernels/tests/", "store/tests/", "object/tests/", "router/tests/"),
        *("launcher/tests/", "terminal/tests/"),
        *(f"router/{crate}/tests/" for crate in PURE),
        *("fuzz/", "benchmark/", "docs/", "deploy/", "integration-tests/snapshots/", "integration-tests/test_"),
        "web/",
    ),
}


def files() -> list[str]:
    """Returns the paths of all tracked and new files, relative to the repository."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return sorted(name for name in names.split("\0") if name and (ROOT / name).is_file())


def digest(suite: str, names: list[str]) -> str:
    """Returns a digest of everything that can affect the outcome of `suite`: files and tool versions."""
    hasher = hashlib.sha256(sys.version.encode())
    hasher.update(subprocess.run(["rustc", "--version"], capture_output=True, check=True).stdout)
    for name in names:
        # These documents affect no test.
        if name.startswith(UNRELATED[suite]) or name in ("CHANGELOG.md", "CONTRIBUTING.md", "LICENSE"):
            continue
        hasher.update(f"{name}\0".encode())
        hasher.update(hashlib.sha256((ROOT / name).read_bytes()).digest())
    return hasher.hexdigest()


class Run:
    """A running suite. The output of a concurrent one goes to a file, which is printed at its end."""

    def __init__(self, suite: str, wanted: str) -> None:
        self.suite, self._wanted, self._begin = suite, wanted, time.monotonic()
        self._log = REPORTS / f"{suite}.log" if suite in CONCURRENT else None
        print(
            f"==== {suite}" + (f" (concurrently, output in {self._log.relative_to(ROOT)})" if self._log else ""),
            flush=True,
        )
        command = ["make", "--no-print-directory", suite]
        if self._log is None:
            self._process = subprocess.Popen(command, cwd=ROOT)
        else:
            REPORTS.mkdir(parents=True, exist_ok=True)
            with self._log.open("wb") as log:
                self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        self._status, self._seconds, self._cpu_seconds = 0, 0.0, 0.0
        self._reaper = threading.Thread(target=self._reap)
        self._reaper.start()

    def _reap(self) -> None:
        """Notes the costs when the suite ends, which for a concurrent one is long before `wait` is called."""
        # `wait4` also tells the CPU time of all descendants that have ended.
        _, encoded, usage = os.wait4(self._process.pid, 0)
        self._status = self._process.returncode = os.waitstatus_to_exitcode(encoded)
        self._seconds = time.monotonic() - self._begin
        self._cpu_seconds = usage.ru_utime + usage.ru_stime

    def wait(self) -> int:
        """Waits for the end, saves the digest if the suite passed, and returns the exit status."""
        self._reaper.join()
        status, seconds, cpu_seconds = self._status, self._seconds, self._cpu_seconds
        if self._log is not None:
            print(self._log.read_text(errors="replace"), end="")
        verdict = "failed" if status else "passed"
        print(f"==== {self.suite} {verdict} after {seconds:.0f} s, {cpu_seconds:.0f} CPU s", flush=True)
        if status == 0:
            costs = recorded_costs() | {self.suite: {"seconds": round(seconds), "cpu_seconds": round(cpu_seconds)}}
            REPORTS.mkdir(parents=True, exist_ok=True)
            COSTS.write_text(json.dumps(costs, indent=2))
            PASSED.mkdir(parents=True, exist_ok=True)
            (PASSED / self.suite).write_text(self._wanted)
        return status


def recorded_costs() -> dict[str, dict[str, int]]:
    return json.loads(COSTS.read_text()) if COSTS.exists() else {}


def exceeded_budgets() -> list[str]:
    """Returns a line for each suite whose last run took more CPU time than its budget."""
    return [
        f"the last run of {suite} took {cost['cpu_seconds']} CPU s, but its budget is {BUDGETS[suite]}; hint: make its "
        "slowest tests faster, or raise its budget in scripts/suites.py and say why"
        for suite, cost in recorded_costs().items()
        if suite in BUDGETS and cost["cpu_seconds"] > BUDGETS[suite]
    ]


def slowest_tests() -> list[str]:
    """Returns a line for each of the slowest tests of all suites; of Rust, whole programs."""
    tests = [
        (float(case.get("time", 0)), report.stem, f"{case.get('classname')}::{case.get('name')}")
        for report in REPORTS.glob("*.xml")
        for case in ET.parse(report).getroot().iter("testcase")
    ]
    if (programs := REPORTS / "rust.txt").exists():
        lines = (line.split() for line in programs.read_text().splitlines())
        tests += [(float(seconds), "rust", f"the program `{name}`") for seconds, name in lines]
    slowest = sorted(tests, reverse=True)[:NUM_SLOWEST]
    return [f"{seconds:7.1f} s  {suite:13} {name[:140]}" for seconds, suite, name in slowest]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--force", action="store_true", help="run every suite")
    parser.add_argument("--budgets", action="store_true", help="only check what the last run of each suite has cost")
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    args = parser.parse_args()
    for unknown in set(args.suites) - UNRELATED.keys():
        parser.error(f"no suite `{unknown}`; hint: the suites are {', '.join(UNRELATED)}")
    if args.budgets:
        problems = exceeded_budgets()
        print(*problems, sep="\n", end="\n" if problems else "", file=sys.stderr)
        return bool(problems)
    names = files()
    wanted = {suite: digest(suite, names) for suite in args.suites}
    due = [suite for suite in args.suites if args.force or not is_unchanged(suite, wanted[suite])]
    for suite in args.suites:
        if suite not in due:
            print(f"==== {suite}: skipped, because its inputs have not changed since it passed (FORCE=1 runs it)")
    concurrent = [Run(suite, wanted[suite]) for suite in due if suite in CONCURRENT]
    status = 0
    for suite in due:
        if suite in CONCURRENT:
            continue
        # System tests use all cores and measure times, so nothing else runs meanwhile.
        while suite == "test-system" and concurrent:
            status = status or concurrent.pop().wait()
        status = status or Run(suite, wanted[suite]).wait()
        if status:
            break
    while concurrent:
        status = concurrent.pop().wait() or status
    if due:
        print("==== slowest tests", *slowest_tests(), sep="\n")
    return status


def is_unchanged(suite: str, wanted: str) -> bool:
    stamp = PASSED / suite
    return bool(UNRELATED[suite]) and stamp.exists() and stamp.read_text() == wanted


if __name__ == "__main__":
    sys.exit(main())
