"""Compares the speed of two commits by ratio and by instruction counts. It is run by hand, not by a test.

    python benchmark/guard.py BASE [HEAD] [--repeat N] [--scratch FOLDER] [--cases CASE ...] [--http] [--no-counts]

Each commit is built in its own git worktree under the scratch folder, where it stays for the next run. Measures:

- the rate of steps of a model in SmolLM2-135M's shape (`step_bench`). Base and head alternate, so that a machine that
  slows down slows both. The ratio is that of the medians; a case whose ranges overlap is marked `~`.
- the instructions per kind of step, counted by callgrind, which do not depend on the machine's load. valgrind does not
  support AVX-512, so both sides use the instruction set of `--count-isa` and others are not counted.
- with `--http`, the figures of `make bench` with each commit's own `trunkline serve`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TIMED_CASES = ("decode:1:512", "decode:8:512", "decode:32:512", "prefill:512", "prefill:2048")
# Counting makes steps 50 times slower, so these cases are small. They use one thread, because none must spin.
COUNTED_CASES = ("decode:1:64", "prefill:32")
RESULT = re.compile(r"^(?P<name>\S.*?)\s+best\s+(?P<best>[\d.]+) tok/s\s+median\s+(?P<median>[\d.]+) tok/s", re.M)
COLLECTED = re.compile(r"Collected : (\d+)")
HTTP_WORKLOADS = "decode,overhead,prefill-512,prefill-2048,history"


class GuardError(Exception):
    """The comparison cannot go on; the message says why."""


@dataclass(frozen=True)
class Side:
    """One of the two commits."""

    label: str
    commit: str
    tree: Path

    @property
    def step_bench(self) -> Path:
        return self.target / "release/examples/step_bench"

    @property
    def target(self) -> Path:
        return self.tree / "target"


@dataclass(frozen=True)
class Comparison:
    """The values of one measure for both sides. More is better for rates, less for counts."""

    name: str
    unit: str
    base: list[float]
    head: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.head) / statistics.median(self.base)

    @property
    def is_noise(self) -> bool:
        """True if the two ranges overlap."""
        return len(self.base) > 1 and min(self.base) <= max(self.head) and min(self.head) <= max(self.base)

    def row(self) -> str:
        mark = " ~" if self.is_noise else ""
        return f"| {self.name} | {_spread(self.base)} | {_spread(self.head)} | {self.unit} | {self.ratio:.3f}{mark} |"


def _spread(values: list[float]) -> str:
    median = statistics.median(values)
    return f"{median:,.1f}" if len(values) == 1 else f"{median:,.1f} ({min(values):,.1f} to {max(values):,.1f})"


def run(command: list[str | Path], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Runs a command and returns its output. Raises GuardError with the last lines of it if the command fails."""
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if done.returncode != 0:
        last_lines = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise GuardError(f"`{' '.join(map(str, command))}` exited with {done.returncode}:\n{last_lines}")
    return done.stdout + done.stderr


def check_out(label: str, revision: str, scratch: Path) -> Side:
    """Returns the commit's worktree, which it creates if necessary."""
    commit = run(["git", "rev-parse", "--verify", f"{revision}^{{commit}}"]).strip()
    tree = scratch / commit[:12]
    if not tree.exists():
        run(["git", "worktree", "prune"])
        run(["git", "worktree", "add", "--detach", tree, commit])
    return Side(label, commit, tree)


def build_kernels(side: Side) -> None:
    print(f"building the kernels of {side.label} {side.commit[:12]}", file=sys.stderr)
    command: list[str | Path] = ["cargo", "build", "--release", "--quiet", "-p", "trunkline-kernels"]
    run([*command, "--example", "step_bench"], cwd=side.tree, env={"CARGO_TARGET_DIR": str(side.target)})


def interleave(
    sides: list[Side], repeat: int, measure: Callable[[Side], dict[str, float]]
) -> dict[str, list[list[float]]]:
    """Measures the sides alternately, `repeat` times, and returns the values of each measure by side."""
    values: dict[str, list[list[float]]] = {}
    for _ in range(repeat):
        for index, side in enumerate(sides):
            for name, value in measure(side).items():
                values.setdefault(name, [[], []])[index].append(value)
    return values


def step_rates(side: Side, threads: int, cases: list[str]) -> dict[str, float]:
    """Returns the highest tokens per second of each case, because noise only ever lowers them."""
    out = run([side.step_bench, str(threads), *cases])
    return {match["name"]: float(match["best"]) for match in RESULT.finditer(out)}


def count_instructions(side: Side, isa: str, case: str) -> float:
    """Returns the instructions of all steps of one case, without those that build the model."""
    # In newer commits `step` calls `step_into`. Each entry toggles counting, so a pattern for both would count nothing.
    has_step_into = "step_into" in run(["nm", side.step_bench])
    function = "*Executor*step_into*" if has_step_into else "*Executor*step*"
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        valgrind: list[str | Path] = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"]
        valgrind += ["--collect-atstart=no", f"--toggle-collect={function}"]
        out = run([*valgrind, side.step_bench, "1", case], env={"TRUNKLINE_ISA": isa})
    found = COLLECTED.search(out)
    if found is None or found[1] == "0":
        raise GuardError(f"callgrind counted nothing for {case}:\n{out[-500:]}")
    return float(found[1])


def build_server(side: Side) -> None:
    print(f"building the server of {side.label} {side.commit[:12]}", file=sys.stderr)
    run(["make", "build", "SHIP=1"], cwd=side.tree, env={"CARGO_TARGET_DIR": str(side.target)})


def http_figures(side: Side) -> dict[str, float]:
    """Returns the figures, rates and times, that the commit's own benchmark measures of its own server."""
    with tempfile.TemporaryDirectory(prefix="guard-") as folder:
        command: list[str | Path] = [sys.executable, "-m", "peers", "--peers", "trunkline", "--repeat", "1"]
        command += ["--workloads", HTTP_WORKLOADS, "--output", folder]
        run(command, cwd=side.tree, env={"PYTHONPATH": "benchmark"})
        workloads = json.loads(Path(folder, "peers.json").read_text(encoding="utf-8"))["workloads"]
    rounds = {name: found["rounds"]["trunkline"][0] for name, found in workloads.items()}
    return {f"{name}: {metric}": value for name, found in rounds.items() for metric, value in found.items()}


def report(title: str, comparisons: list[Comparison]) -> None:
    print(f"\n{title}\n\n| measure | base | head | unit | head / base |\n|---|---:|---:|---|---:|")
    for comparison in comparisons:
        print(comparison.row())
    sys.stdout.flush()


def compare(options: argparse.Namespace, scratch: Path) -> None:
    sides = [check_out("base", options.base, scratch), check_out("head", options.head, scratch)]
    for side in sides:
        build_kernels(side)
    print(f"base {sides[0].commit[:12]}, head {sides[1].commit[:12]}; medians (lowest to highest); ~ marks noise")
    rates = interleave(sides, options.repeat, lambda side: step_rates(side, options.threads, options.cases))
    title = f"Steps, {options.threads} threads, {options.repeat} times"
    report(title, [Comparison(name, "tok/s", *values) for name, values in rates.items()])
    if options.counts:
        counts = {
            case: [[count_instructions(side, options.count_isa, case)] for side in sides] for case in COUNTED_CASES
        }
        title = f"Instructions of all steps, 1 thread, {options.count_isa} (callgrind does not support AVX-512)"
        report(title, [Comparison(case, "instructions", *values) for case, values in counts.items()])
    if options.http:
        for side in sides:
            build_server(side)
        figures = interleave(sides, options.repeat, http_figures)
        both = {name: values for name, values in figures.items() if all(values)}
        report("Through HTTP, as `make bench` measures", [Comparison(name, "", *v) for name, v in both.items()])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("base", help="commit, tag or branch to compare with")
    parser.add_argument("head", nargs="?", default="HEAD", help="default: HEAD, without uncommitted changes")
    parser.add_argument("--repeat", type=int, default=5, help="measurements of each side; default: 5")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cases", nargs="+", default=list(TIMED_CASES), help="arguments of `step_bench`")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "trunkline-guard")
    parser.add_argument("--count-isa", default="avx2", choices=("avx2", "scalar"))
    parser.add_argument("--no-counts", dest="counts", action="store_false", help="do not count instructions")
    parser.add_argument("--http", action="store_true", help="also measure `trunkline serve`; builds both servers")
    options = parser.parse_args()
    if options.counts and shutil.which("valgrind") is None:
        print("warning: valgrind is not installed, so instructions are not counted", file=sys.stderr)
        options.counts = False
    options.scratch.mkdir(parents=True, exist_ok=True)
    try:
        compare(options, options.scratch)
    except GuardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
