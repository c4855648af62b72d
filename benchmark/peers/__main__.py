"""Measures Trunkline and its peers in turn: make bench NAME=peers [ARGS="--quick --peers trunkline,openvino"]

Installs missing peers (compiling llama.cpp takes ten minutes), then measures the peers round by round. Each measurement
is saved at once, so --resume continues an interrupted run. Nothing here is an assertion.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from bars import ALL_PANELS, picture
from harness import embedded_gguf

from .environment import ROOT
from .machine import describe, first_of_each_core, limits
from .metrics import Slo
from .peer import Peer, Setting
from .report import Report
from .roster import PEERS
from .runner import Runner, suits
from .store import Store
from .words import single_token_words
from .workload import GROUPS, Workload, quick

RESULTS = ROOT / "benchmark/results"
# vLLM compiles kernels at its first start.
START_LIMIT_S = 600.0
# Typical time of a start with its warm-up.
START_S = 15.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter workloads, for development")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted run")
    parser.add_argument("--peers", default="", help=f"some of {','.join(p.name for p in PEERS)}")
    names = ",".join(w.name for group in GROUPS for w in group)
    parser.add_argument("--workloads", default="", help=f"some of {names}; `decode` selects all that begin with it")
    parser.add_argument(
        "--repeat", type=int, default=0, help="rounds of each workload; default: depends on the workload"
    )
    parser.add_argument("--slo-ttft-ms", type=float, default=1000, help="longest time to first token for goodput")
    parser.add_argument("--slo-tpot-ms", type=float, default=50, help="longest time per further token for goodput")
    parser.add_argument("--threads", type=int, default=len(first_of_each_core()), help="threads of every peer")
    parser.add_argument("--seed", type=int, default=1, help="seed of the prompts")
    parser.add_argument("--model", type=Path, help="GGUF file; default: the embedded model")
    parser.add_argument("--output", type=Path, help="folder for results")
    parser.add_argument("--install-only", action="store_true", help="install the peers and stop")
    return parser.parse_args()


def chosen_peers(text: str) -> list[Peer]:
    by_name = {p.name: p for p in PEERS}
    return [by_name[name] for name in picked(text, list(by_name))]


def picked(text: str, known: list[str]) -> list[str]:
    """Returns the known names that equal or begin with one of the comma-separated texts, or all if there is none."""
    if not text:
        return known
    found: set[str] = set()
    for part in text.split(","):
        match = {name for name in known if name == part} or {name for name in known if name.startswith(part)}
        if not match:
            raise SystemExit(f"error: `{part}` is unknown; hint: use {', '.join(known)}")
        found |= match
    return [name for name in known if name in found]


def chosen_groups(options: argparse.Namespace) -> list[list[Workload]]:
    groups = quick() if options.quick else GROUPS
    names = picked(options.workloads, [w.name for group in groups for w in group])
    repeated = [[replace(w, repeats=options.repeat or w.repeats) for w in group if w.name in names] for group in groups]
    return [group for group in repeated if group]


def expected_minutes(peers: list[Peer], groups: list[list[Workload]]) -> tuple[float, float]:
    """Returns the typical and the longest time of the run after installation."""
    typical = longest = 0.0
    for peer in peers:
        for group in groups:
            suitable = [w for w in group if suits(peer, w)]
            starts_s = START_S * max((w.repeats for w in suitable), default=0)
            typical += starts_s + sum(w.repeats * w.expected_s for w in suitable)
            # A measurement that was cut off is not repeated, and costs a new start.
            longest += starts_s + sum(max(w.limit_s + START_S, w.repeats * w.expected_s) for w in suitable)
    return typical / 60, longest / 60


def main() -> int:
    options = arguments()
    # SIGTERM raises KeyboardInterrupt, so that the running peer is stopped.
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
        data = report.json()
        (output / "peers.json").write_text(json.dumps(data, indent=1) + "\n")
        names = {peer.name: peer.name for peer in peers}
        (output / "peers.svg").write_text(picture(data["workloads"], ALL_PANELS, names))

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
        say("interrupted; hint: run the same command with --resume to continue")
    write()
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


if __name__ == "__main__":
    sys.exit(main())
