"""Compares one shard with several on the same cores: `make bench NAME=replicas TRACE=FILE`.

python benchmark/replicas.py [--requests 120] [--clients 16] [--shrink 16] [--rounds 2] < TRACE

The trace has the form of `make sim-fleet`. `--clients` connections send its first requests one after another, as fast
as they are answered. Prompts and outputs are `--shrink` times shorter than in the trace. The setups take turns, each
with a server of its own that has nothing cached, so that a neighbour on the machine slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from statistics import median

from fairness import TOKEN_IDS, Client, metric, percentile
from harness import serving

# Tokens of a block of the trace.
BLOCK_TOKENS = 512
# The embedded model's context, less the longest output.
MAX_PROMPT_TOKENS = 7_000

Request = tuple[list[int], int]


def requests(lines: Iterable[str], shrink: int) -> Iterator[Request]:
    """Yields prompts and numbers of output tokens. Prompts are equal where their blocks are."""
    for line in lines:
        request = json.loads(line)
        num_tokens = request["input_length"] // shrink
        if not 0 < num_tokens <= MAX_PROMPT_TOKENS:
            continue
        blocks = (random.Random(block).choices(TOKEN_IDS, k=BLOCK_TOKENS // shrink) for block in request["hash_ids"])
        prompt = [token for block in blocks for token in block]
        yield prompt[:num_tokens], max(request["output_length"] // shrink, 1)


def run(flags: tuple[str, ...], asked: list[Request], num_clients: int) -> dict[str, float]:
    """Answers all requests, and returns what was measured."""
    with serving(*flags, "--max-concurrent-requests", str(2 * num_clients)) as server:
        parts = [(Client(server.port, "trace"), asked[first::num_clients]) for first in range(num_clients)]
        begin = time.perf_counter()
        with ThreadPoolExecutor(num_clients) as pool:
            answered = pool.map(lambda part: [part[0].ttft_s(*request) for request in part[1]], parts)
            firsts = [seconds for seconds_of_client in answered for seconds in seconds_of_client]
        seconds = time.perf_counter() - begin
        hits = metric(server.port, "trunkline_prefix_hit_tokens_total")
    num_tokens = sum(len(prompt) + num_output for prompt, num_output in asked)
    return {
        "tokens/s": num_tokens / seconds,
        "first token p50, s": percentile(firsts, 50),
        "first token p99, s": percentile(firsts, 99),
        "hit rate": hits / sum(len(prompt) for prompt, _ in asked),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--clients", type=int, default=16, help="requests that are open at a time")
    parser.add_argument("--shrink", type=int, default=16, help="how much shorter than in the trace everything is")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    num_cores = len(os.sched_getaffinity(0))
    asked = list(islice(requests(sys.stdin, args.shrink), args.requests))
    if len(asked) < args.requests:
        sys.exit(f"error: the trace has only {len(asked)} requests that fit the model")
    setups = {
        f"one shard, {num_cores} threads": ("--threads", str(num_cores)),
        f"{num_cores} shards of one thread": ("--replicas", str(num_cores)),
    }
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in setups}
    for _ in range(args.rounds):
        for name, flags in setups.items():
            measured[name].append(run(flags, asked, args.clients))
    setup = f"{len(asked)} requests, {args.clients} at a time, a {args.shrink}th of their length"
    print(f"{setup}; medians of {args.rounds} rounds\n")
    names = list(measured)
    print("| | " + " | ".join(names) + " | ratio |\n|---|" + "--:|" * (len(names) + 1))
    for what in measured[names[0]][0]:
        one, several = (median(row[what] for row in measured[name]) for name in names)
        print(f"| {what} | {one:.3g} | {several:.3g} | {several / one:.2f} |")


if __name__ == "__main__":
    main()
