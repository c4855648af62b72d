"""Measures what it costs to wake a conversation: `make bench NAME=sleepers`.

python benchmark/sleepers.py [--conversations 60] [--awake 6] [--tokens 1000] [--model MODEL]

The KV cache in memory has room for `--awake` conversations, and `--kv-disk-path` for all. Each conversation has a
first request, whose prompt is computed, and much later a second one, whose history must be read from the disk. Prints
the time to the first token of both and of conversations that are awake, and the tokens that were found.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from statistics import median, quantiles

from load import Stream, line, measure_all, streams  # isort: skip  (finds the harness)
from fairness import ROOT
from harness import EMBEDDED, serving

TOKEN_IDS = range(1_000, 40_000)
OUTPUT, NEW = 8, 16
# A block is not shared unless it is full, and steps need some of their own.
SPARE_TOKENS = 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conversations", type=int, default=60)
    parser.add_argument("--awake", type=int, default=6, help="conversations that fit into the KV cache in memory")
    parser.add_argument("--tokens", type=int, default=1000, help="tokens of a history")
    parser.add_argument("--model", default=EMBEDDED)
    args = parser.parse_args()
    rng = random.Random(58)
    histories = [rng.choices(TOKEN_IDS, k=args.tokens) for _ in range(args.conversations)]
    pool = args.awake * (args.tokens + NEW + 2 * OUTPUT) + SPARE_TOKENS
    print(f"{args.conversations} conversations of {args.tokens} tokens, {args.awake} awake\n")
    print("| request | first token, median ms | p95 ms | tokens found |")
    print("|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as folder:
        flags = ("--max-batch-total-tokens", str(pool), "--kv-disk-path", folder, "--kv-disk-size", "64GiB")
        with serving(*flags, model=args.model) as server:
            new = [rng.choices(TOKEN_IDS, k=NEW) for _ in histories]
            woken = [history + more for history, more in zip(histories, new, strict=True)]
            for what, prompts in (
                ("first", histories),
                ("asleep", woken),
                ("awake", [prompt[:-1] for prompt in woken[-args.awake // 2 :]]),
            ):
                lines = [line(OUTPUT, prompt=prompt, temperature=0) for prompt in prompts]
                load = measure_all(server.base_url, lines, "--detailed", num_clients=1)
                print(row(what, streams(load), sum(map(len, prompts))), flush=True)


def row(what: str, requests: Sequence[Stream], num_tokens: int) -> str:
    times = [request.ttft_s * 1e3 for request in requests]
    found = sum(request.cached_tokens for request in requests)
    return f"| {what} | {median(times):.0f} | {quantiles(times, n=20)[-1]:.0f} | {found / num_tokens:.0%} |"


if __name__ == "__main__":
    main()
