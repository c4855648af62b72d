"""Compares two commits in one run, by ratio and by instruction counts. By hand: nothing here fails a test.

    python benchmark/guard.py BASE [HEAD] [--repeat N] [--scratch FOLDER] [--cases CASE ...] [--http] [--no-counts]

Each commit is built in a git worktree of its own under the scratch folder, and stays there for the next time. Then:

- steps of a model in SmolLM2-135M's shape (`step_bench`), interleaved base, head, base, head ..., so that a machine
  that slows down slows both; the ratio is of the medians, and a case whose two ranges overlap is marked `~`;
- instructions that steps of each kind take, by callgrind. They do not vary with the machine's load. valgrind knows
  no AVX-512, so both sides run as `--count-isa` (avx2) says: kernels of other sets are not counted;
- with `--http`, what `benchmark/bench.py` of each commit prints, through its own `trunkline serve`, in turn.
"""

from __future__ import annotations

import argparse
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
# Counting is 50 times slower than running: little work, and one thread, so that nobody spins.
COUNTED_CASES = ("decode:1:64", "prefill:32")
RESULT = re.compile(r"^(?P<name>\S.*?)\s+best\s+(?P<best>[\d.]+) tok/s\s+median\s+(?P<median>[\d.]+) tok/s", re.M)
COLLECTED = re.compile(r"Collected : (\d+)")
# A row of `bench.py`: a name, a median, and perhaps its spread.
HTTP_ROW = re.compile(r"^\| (?P<name>[^|]*\S)\s*\| (?P<value>[\d.,]+)", re.M)


class GuardError(Exception):
    """What stops the comparison, for people."""


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
    """Values of one measure of both sides; more is better for rates, less for counts."""

    name: str
    unit: str
    base: list[float]
    head: list[float]

    @property
    def ratio(self) -> float:
        return statistics.median(self.head) / statistics.median(self.base)

    @property
    def is_noise(self) -> bool:
        """The two ranges overlap."""
        return len(self.base) > 1 and min(self.base) <= max(self.head) and min(self.head) <= max(self.base)

    def row(self) -> str:
        mark = " ~" if self.is_noise else ""
        return f"| {self.name} | {_spread(self.base)} | {_spread(self.head)} | {self.unit} | {self.ratio:.3f}{mark} |"


def _spread(values: list[float]) -> str:
    median = statistics.median(values)
    return f"{median:,.1f}" if len(values) == 1 else f"{median:,.1f} ({min(values):,.1f} to {max(values):,.1f})"


def run(command: list[str | Path], *, cwd: Path = ROOT, env: dict[str, str] | None = None) -> str:
    """Standard output. Raises GuardError with what the command said."""
    done = subprocess.run(command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True)
    if done.returncode != 0:
        said = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise GuardError(f"`{' '.join(map(str, command))}` ended with {done.returncode}:\n{said}")
    return done.stdout + done.stderr


def check_out(label: str, revision: str, scratch: Path) -> Side:
    """A worktree of the commit, made or found."""
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
    """Values of each measure, by side: one side after the other, again and again."""
    values: dict[str, list[list[float]]] = {}
    for _ in range(repeat):
        for index, side in enumerate(sides):
            for name, value in measure(side).items():
                values.setdefault(name, [[], []])[index].append(value)
    return values


def step_rates(side: Side, threads: int, cases: list[str]) -> dict[str, float]:
    """Best tokens per second of each case: noise of others only ever takes away."""
    out = run([side.step_bench, str(threads), *cases])
    return {match["name"]: float(match["best"]) for match in RESULT.finditer(out)}


def count_instructions(side: Side, isa: str, case: str) -> float:
    """Instructions of all steps of one case; building the model is left out."""
    # A step into the caller's memory is a younger name; a step calls it, and entering both would count nothing.
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
    run(["make", "build"], cwd=side.tree, env={"CARGO_TARGET_DIR": str(side.target)})


def http_figures(side: Side) -> dict[str, float]:
    """What the commit's own benchmark says of its own server; rates and times alike."""
    out = run([sys.executable, side.tree / "benchmark/bench.py", "--repeat", "1"], cwd=side.tree)
    return {match["name"]: float(match["value"].replace(",", "")) for match in HTTP_ROW.finditer(out)}


def report(title: str, comparisons: list[Comparison]) -> None:
    print(f"\n{title}\n\n| measure | base | head | unit | head / base |\n|---|---:|---:|---|---:|")
    for comparison in comparisons:
        print(comparison.row())
    sys.stdout.flush()


def compare(options: argparse.Namespace, scratch: Path) -> None:
    sides = [check_out("base", options.base, scratch), check_out("head", options.head, scratch)]
    for side in sides:
        build_kernels(side)
    print(f"base {sides[0].commit[:12]}, head {sides[1].commit[:12]}; medians (lowest to highest); ~ is noise")
    rates = interleave(sides, options.repeat, lambda side: step_rates(side, options.threads, options.cases))
    title = f"Steps, {options.threads} threads, {options.repeat} times"
    report(title, [Comparison(name, "tok/s", *values) for name, values in rates.items()])
    if options.counts:
        counts = {
            case: [[count_instructions(side, options.count_isa, case)] for side in sides] for case in COUNTED_CASES
        }
        title = f"Instructions of all steps, 1 thread, {options.count_isa} (callgrind knows no AVX-512)"
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
    parser.add_argument("head", nargs="?", default="HEAD", help="default: HEAD; what is not committed is not built")
    parser.add_argument("--repeat", type=int, default=5, help="visits of each side; default: 5")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cases", nargs="+", default=list(TIMED_CASES), help="as `step_bench` takes them")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()) / "trunkline-guard")
    parser.add_argument("--count-isa", default="avx2", choices=("avx2", "scalar"))
    parser.add_argument("--no-counts", dest="counts", action="store_false", help="no instruction counts")
    parser.add_argument("--http", action="store_true", help="also through `trunkline serve`; builds both servers")
    options = parser.parse_args()
    if options.counts and shutil.which("valgrind") is None:
        print("valgrind is not installed: no instruction counts", file=sys.stderr)
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
