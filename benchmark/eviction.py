"""Compares the hit rates of eviction policies, by capacity of the prefix cache, with the offline optimum.

python benchmark/eviction.py REPLAY [TRACE] [--capacities 300,1000,...] [--output FOLDER]

REPLAY is the example program of router/kv that replays a trace. TRACE has one JSON object with `hash_ids` per line,
plain or gzipped, as in the Mooncake traces. Writes eviction.md and eviction.svg for the trace, and eviction-made.md for
the synthetic traces of eviction_traces.py.
"""

import argparse
import gzip
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import eviction_traces
from line_chart import line_chart

CAPACITIES = "300,500,1000,2000,3000,5000,10000,15000,20000,30000"
MADE_CAPACITIES = (100, 300, 1000, 3000)
BASE, BOUND = "lru", "optimum"


def read(path):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt") as lines:
        return [json.loads(line)["hash_ids"] for line in lines]


def replay(program, requests, capacities):
    """Returns {policy: {capacity: hit rate}}, with the policies in the program's order."""
    text = "".join(" ".join(map(str, ids)) + "\n" for ids in requests)
    done = subprocess.run([program, *map(str, capacities)], input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"error: {program} exited with {done.returncode}: {done.stderr.strip()}")
    rates = defaultdict(dict)
    for line in done.stdout.splitlines():
        capacity, policy, hits, total, _ = line.split("\t")
        rates[policy][int(capacity)] = int(hits) / max(int(total), 1)
    return rates


def share(rates, policy, capacity):
    """Returns the share of the gap between LRU and the optimum that a policy closes, or None if there is no gap."""
    base, bound = rates[BASE][capacity], rates[BOUND][capacity]
    return (rates[policy][capacity] - base) / (bound - base) if bound > base else None


def table(rates, capacities):
    others = [policy for policy in rates if policy not in (BASE, BOUND)]
    head = ["blocks", BASE, *(f"{p} | of the gap" for p in others), BOUND]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * (len(others) * 2 + 3)]
    for capacity in capacities:
        row = [f"{capacity:,}", f"{rates[BASE][capacity]:.1%}"]
        for policy in others:
            closed = share(rates, policy, capacity)
            row += [f"{rates[policy][capacity]:.1%}", "" if closed is None else f"{closed:.0%}"]
        lines.append("| " + " | ".join([*row, f"{rates[BOUND][capacity]:.1%}"]) + " |")
    return "\n".join(lines)


def made_table(program):
    """Returns a table of all synthetic traces, with the policies' hit rates in percentage points above LRU's."""
    lines = []
    for name in eviction_traces.TRACES:
        rates = replay(program, eviction_traces.requests(name), MADE_CAPACITIES)
        others = [policy for policy in rates if policy != BASE]
        if not lines:
            lines = [f"| trace | blocks | {BASE} | {' | '.join(others)} |", "|" + "---|" * (len(others) + 3)]
        for capacity in MADE_CAPACITIES:
            base = rates[BASE][capacity]
            row = [name.replace("_", " "), f"{capacity:,}", f"{base:.2%}"]
            row += [f"{(rates[policy][capacity] - base) * 100:+.2f}" for policy in others]
            lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def write_made(program, output):
    text = (
        f"# Eviction on synthetic traffic\n\n`eviction_traces.py`, {eviction_traces.NUM_REQUESTS:,} requests each. Hit "
        f"rate of blocks with LRU, and percentage points above it.\n\n{made_table(program)}\n"
    )
    print(text)
    if output:
        (output / "eviction-made.md").write_text(text)


def write_trace(program, trace, capacities, output):
    requests = read(trace)
    rates = replay(program, requests, capacities)
    text = (
        f"# Eviction\n\n`{trace.name}`: {len(requests):,} requests, {sum(map(len, requests)):,} blocks. Hit rate of "
        "blocks; *of the gap* is the share of the gap between LRU and the offline optimum that a policy closes.\n\n"
        f"{table(rates, capacities)}\n\n![hit rate over capacity](eviction.svg)\n"
    )
    print(text)
    if output:
        (output / "eviction.md").write_text(text)
        series = {policy: sorted(by.items()) for policy, by in rates.items()}
        chart = line_chart("hit rate of blocks by capacity", "capacity in blocks", series, y_text="{:.0%}".format)
        (output / "eviction.svg").write_text(chart)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("trace", type=Path, nargs="?")
    parser.add_argument("--capacities", default=CAPACITIES, help="capacities in blocks (default: %(default)s)")
    parser.add_argument("--output", type=Path, help="folder for the results")
    args = parser.parse_args()
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
    if args.trace:
        capacities = sorted(int(text) for text in args.capacities.split(","))
        write_trace(args.program, args.trace, capacities, args.output)
    write_made(args.program, args.output)


if __name__ == "__main__":
    main()
