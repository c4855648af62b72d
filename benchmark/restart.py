"""Measures the cost of a restart for a long history: `make bench NAME=restart`.

In each round the server computes a prompt of some thousand tokens, all its processes are killed with SIGKILL, and a new
server on the same folder gets the prompt with a few more tokens. Prints medians, and an estimate for a model of
Llama-3-8B's shape from the measured rates.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "integration-tests"), str(ROOT / "benchmark")]

from client import stream  # noqa: E402
from harness import Trunkline, descendants, wait_for  # noqa: E402

# Llama-3-8B has 32 layers, 8 KV heads of size 128, int8 K and V with a scale each, and 8.03e9 weights.
SHAPE_8B = {"kv_bytes_per_token": 32 * 8 * 2 * (128 + 4), "operations_per_token": 2 * 8.03e9}
# Operations per token in the linear layers of SmolLM2-135M.
DEFAULT_OPERATIONS_PER_TOKEN = 2 * 134.5e6


def first_token(server: Trunkline, prompt: list[int]) -> tuple[float, int]:
    """Returns the seconds to the first token and the number of cached tokens."""
    done = asyncio.run(stream("127.0.0.1", server.port, prompt, 2))
    return done.ttft_s, done.usage["prompt_tokens_details"]["cached_tokens"]


def start(folder: str) -> Trunkline:
    server = Trunkline("--kv-disk-path", folder, "--kv-disk-size", "2GiB").wait_ready()
    first_token(server, [5] * 8)
    return server


def kill(server: Trunkline) -> None:
    for pid in [server.process.pid, *descendants(server.process.pid)]:
        os.kill(pid, signal.SIGKILL)
    server.process.wait()
    server.close()


def one_round(length: int, number: int) -> dict[str, float]:
    prompt = [1 + (7919 * number + 31 * position) % 40_000 for position in range(length)]
    with tempfile.TemporaryDirectory(prefix="kv-") as folder:
        server = start(folder)
        cold, cached = first_token(server, prompt)
        assert cached == 0, "the prompt was cached before its first use"
        warm, _ = first_token(server, [*prompt, *range(100, 132)])
        # Acknowledged blocks are in the page cache, so the kill need not wait for anything.
        kill(server)
        server = start(folder)
        restored, cached = first_token(server, [*prompt, *range(200, 232)])
        again, _ = first_token(server, [*prompt, *range(300, 332)])
        blocks = wait_for(lambda: server.metrics()["trunkline_restored_blocks_total"], "restored blocks")
        server.stop()
    return {"cold": cold, "warm": warm, "restored": restored, "again": again, "cached": cached, "blocks": blocks}


def table(rounds: list[dict[str, float]], length: int) -> str:
    middle = {name: statistics.median(a_round[name] for a_round in rounds) for name in rounds[0]}
    rate = middle["cached"] / (middle["restored"] - middle["warm"] + 1e-3)
    default_bytes = 12_240
    bytes_per_s = max(rate, middle["cached"] / middle["restored"]) * default_bytes
    operations_per_s = length / middle["cold"] * DEFAULT_OPERATIONS_PER_TOKEN
    compute_8b = length * SHAPE_8B["operations_per_token"] / operations_per_s
    read_8b = length * SHAPE_8B["kv_bytes_per_token"] / bytes_per_s
    lines = [
        f"Time to first token of {length:,} tokens, medians of {len(rounds)} (`make bench NAME=restart`)",
        "",
        "| | seconds | share of cold |",
        "|---|---|---|",
    ]
    for name, what in [
        ("cold", "cold"),
        ("restored", "+ 32 tokens, after every process was killed"),
        ("again", "+ 32 tokens, once more"),
        ("warm", "+ 32 tokens, before the kill"),
    ]:
        lines.append(f"| {what} | {middle[name]:.3f} | 1/{middle['cold'] / middle[name]:.0f} |")
    lines += [
        "",
        f"{middle['cached']:.0f} tokens were restored. At the rates of this run (prefill "
        f"{length / middle['cold']:.0f} tokens/s, restore {bytes_per_s / 1e9:.2f} GB/s), a model of Llama-3-8B's shape "
        f"would compute them in {compute_8b:.0f} s and read them in {read_8b:.2f} s, 1/{compute_8b / read_8b:.0f}.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=6_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true", help="write benchmark/results/restart.md")
    args = parser.parse_args()
    rounds = []
    for number in range(args.rounds):
        rounds.append(one_round(args.tokens, number))
        print(f"round {number + 1} of {args.rounds}: {rounds[-1]}", file=sys.stderr)
    text = table(rounds, args.tokens)
    print(text)
    if args.save:
        (ROOT / "benchmark/results/restart.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
