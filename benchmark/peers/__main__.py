"""Measures Trunkline and its peers in turn: make bench NAME=peers [ARGS="--quick --peers trunkline,openvino"]

Installs what is missing (llama.cpp compiles for ten minutes), then visits the peers round by round. Each measurement is
kept as it is made: an interrupted run goes on with --resume. Nothing here is an assertion.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from harness import embedded_gguf

from .environment import INSIDE, ROOT, Environment, InstallError, run
from .machine import describe, first_of_each_core, limits
from .metrics import Slo
from .peer import Peer, Setting
from .report import Report
from .roster import PEERS
from .runner import Runner, asks
from .store import Store
from .words import single_token_words
from .workload import GROUPS, Workload, quick

RESULTS = ROOT / "benchmark/results"
# vLLM compiles kernels at its first start.
START_LIMIT_S = 600.0
# Typical of a start and its warm-up.
START_S = 15.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter workloads, for development")
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    parser.add_argument("--peers", default="", help=f"of {','.join(p.name for p in PEERS)}")
    names = ",".join(w.name for group in GROUPS for w in group)
    parser.add_argument("--workloads", default="", help=f"of {names}; `decode` means all that begin so")
    parser.add_argument("--repeat", type=int, default=0, help="rounds of each workload, instead of its own number")
    parser.add_argument("--slo-ttft-ms", type=float, default=1000, help="goodput: longest time to first token")
    parser.add_argument("--slo-tpot-ms", type=float, default=50, help="goodput: longest time per further token")
    parser.add_argument("--threads", type=int, default=len(first_of_each_core()), help="of every peer")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    parser.add_argument("--model", type=Path, help="a GGUF; default: the embedded model")
    parser.add_argument("--output", type=Path, help="folder of the results")
    parser.add_argument("--install-only", action="store_true", help="install the peers and stop")
    return parser.parse_args()


def chosen_peers(text: str) -> list[Peer]:
    by_name = {p.name: p for p in PEERS}
    return [by_name[name] for name in picked(text, list(by_name))]


def picked(text: str, known: list[str]) -> list[str]:
    """The names asked for, or all that begin so; all of them when nothing is asked."""
    if not text:
        return known
    found: set[str] = set()
    for asked in text.split(","):
        match = {name for name in known if name == asked} or {name for name in known if name.startswith(asked)}
        if not match:
            raise SystemExit(f"error: no `{asked}`; hint: one of {', '.join(known)}")
        found |= match
    return [name for name in known if name in found]


def chosen_groups(options: argparse.Namespace) -> list[list[Workload]]:
    groups = quick() if options.quick else GROUPS
    names = picked(options.workloads, [w.name for group in groups for w in group])
    repeated = [[replace(w, repeats=options.repeat or w.repeats) for w in group if w.name in names] for group in groups]
    return [group for group in repeated if group]


def expected_minutes(peers: list[Peer], groups: list[list[Workload]]) -> tuple[float, float]:
    """Typical and longest time of the run once everything is installed."""
    typical = longest = 0.0
    for peer in peers:
        for group in groups:
            asked = [w for w in group if asks(peer, w)]
            starts_s = START_S * max((w.repeats for w in asked), default=0)
            typical += starts_s + sum(w.repeats * w.expected_s for w in asked)
            # A measurement that was cut off is not repeated, and costs a new start.
            longest += starts_s + sum(max(w.limit_s + START_S, w.repeats * w.expected_s) for w in asked)
    return typical / 60, longest / 60


def main() -> int:
    options = arguments()
    # Told to end, it ends the peer that it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    peers, groups = chosen_peers(options.peers), chosen_groups(options)
    output = options.output or (RESULTS / "quick" if options.quick else RESULTS)
    gguf = options.model or embedded_gguf()
    settings = {
        "quick": options.quick,
        "seed": options.seed,
        "threads": options.threads,
        "repeat": options.repeat,
        "slo_ttft_ms": options.slo_ttft_ms,
        "slo_tpot_ms": options.slo_tpot_ms,
        "model": gguf.name,
        "weights_mb": gguf.stat().st_size / 1e6,
    }
    store = Store(output / "peers.jsonl", settings)
    try:
        store.open(resume=options.resume)
    except ValueError as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 2
    begin = time.monotonic()

    def say(line: str) -> None:
        print(f"[{(time.monotonic() - begin) / 60:5.1f} min] {line}", flush=True)

    workloads = [w for group in groups for w in group]
    report = Report(store, peers, workloads, heading(options, gguf))

    def write() -> None:
        (output / "peers.md").write_text(report.markdown())
        (output / "peers.json").write_text(json.dumps(report.json(), indent=1) + "\n")

    runner = Runner(
        peers=peers,
        groups=groups,
        setting=Setting(gguf, options.threads, START_LIMIT_S),
        store=store,
        words=single_token_words(gguf),
        slo=Slo(options.slo_ttft_ms, options.slo_tpot_ms),
        seed=options.seed * 1000,
        say=say,
        written=write,
    )
    runner.install()
    if options.install_only:
        return 0
    typical, longest = expected_minutes(peers, groups)
    say(f"{len(peers)} rows; about {typical:.0f} minutes, at most {longest:.0f}; results in {shown(output)}")
    try:
        runner.run()
    except KeyboardInterrupt:
        say("interrupted; hint: the same command with --resume goes on")
    write()
    report.plots = plot(output, say)
    write()
    print("\n" + report.reach())
    say(f"done: {shown(output)}/peers.md")
    return 0


def shown(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def heading(options: argparse.Namespace, gguf: Path) -> list[str]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    mode = "quick" if options.quick else "full"
    return [
        describe(options.threads),
        f"{gguf.stem}, commit {commit}, {mode} run, seed {options.seed}. Medians (lowest–highest) over the rounds; "
        "ratios say how many times better Trunkline is. Goodput: TTFT ≤ "
        f"{options.slo_ttft_ms:g} ms and TPOT ≤ {options.slo_tpot_ms:g} ms. See benchmark/README.md.",
        limits(RESULTS / "limits.json"),
    ]


def plot(output: Path, say: Callable[[str], None]) -> list[str]:
    """Draws the plots in an environment of their own, and names them; a run without them is still a run."""
    environment = Environment("plot")
    for old in output.glob("*.svg"):
        old.unlink()
    try:
        if not environment.installed():
            environment.install()
            environment.done()
        run([environment.python, INSIDE / "plots.py", output / "peers.json", output], environment.folder / "plot.log")
    except InstallError as failure:
        say(f"no plots: {failure}")
    return sorted(path.stem for path in output.glob("*.svg"))


if __name__ == "__main__":
    sys.exit(main())
