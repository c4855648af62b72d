"""Compares one shard with several on the same cores: `make bench NAME=replicas TRACE=FILE`.

python benchmark/replicas.py [--requests 120] [--clients 16] [--shrink 16] [--rounds 2] < TRACE

The trace has the form of `make sim-fleet`. `trunkline bench` sends its first requests by `--clients` connections, as
fast as they are answered. Prompts and outputs are `--shrink` times shorter than in the trace. The setups take turns,
each with a server of its own that has nothing cached, so that a neighbour on the machine slows both.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from load import measure  # isort: skip  (finds the harness)
from harness import serving

# The embedded model's context, less the longest output.
MAX_PROMPT_TOKENS = 7_000


def run(flags: tuple[str, ...], trace: Path, args: argparse.Namespace) -> dict[str, float]:
    """Answers all requests, and returns what was measured."""
    load = ("--requests", str(args.requests), "--concurrency", str(args.clients))
    lengths = ("--trace-shrink", str(args.shrink), "--max-input-tokens", str(MAX_PROMPT_TOKENS))
    with serving(*flags, "--max-concurrent-requests", str(2 * args.clients)) as server:
        figures = measure(server.base_url, "--trace", str(trace), *load, *lengths)["figures"]
    return {
        "tokens/s": figures["total_tokens_per_s"],
        "first token p50, s": figures["ttft_ms"]["median"] / 1e3,
        "first token p99, s": figures["ttft_ms"]["p99"] / 1e3,
        "hit rate": figures["cached_tokens"] / figures["prompt_tokens"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--clients", type=int, default=16, help="requests that are open at a time")
    parser.add_argument("--shrink", type=int, default=16, help="how much shorter than in the trace everything is")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    num_cores = len(os.sched_getaffinity(0))
    setups = {
        f"one shard, {num_cores} threads": ("--threads", str(num_cores)),
        f"{num_cores} shards of one thread": ("--replicas", str(num_cores)),
    }
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in setups}
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        trace.write_text(sys.stdin.read())
        for _ in range(args.rounds):
            for name, flags in setups.items():
                measured[name].append(run(flags, trace, args))
    setup = f"{args.requests} requests, {args.clients} at a time, a {args.shrink}th of their length"
    print(f"{setup}; medians of {args.rounds} rounds\n")
    names = list(measured)
    print("| | " + " | ".join(names) + " | ratio |\n|---|" + "--:|" * (len(names) + 1))
    for what in measured[names[0]][0]:
        one, several = (median(row[what] for row in measured[name]) for name in names)
        print(f"| {what} | {one:.3g} | {several:.3g} | {several / one:.2f} |")


if __name__ == "__main__":
    main()
