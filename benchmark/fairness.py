"""Measures how a flood of one tenant affects the time to first token of another: `make bench NAME=fairness`.

python benchmark/fairness.py [--flood 200] [--chats 30] [--prompt-tokens 600] [--replicas 1] [--output FOLDER]

The server has two tenants of equal weight. Tenant B sends chats one after another, first alone and then while tenant A
keeps `--flood` requests open. Prompts are random words, so nothing is cached. `trunkline bench` sends both.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import os
import platform
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from load import ROOT, background, measure  # isort: skip  (finds the harness)
from harness import Trunkline, serving
from tenants import headers, write_keys

FLOOD, CHATS = "flood", "chats"
CHAT_OUTPUT_TOKENS = 16
# Tokens of the flood's prompts and outputs on average, and the part by which they differ from it at most.
FLOOD_PROMPT_TOKENS, FLOOD_OUTPUT_TOKENS, FLOOD_SPREAD = "160", "72", "0.8"
# The server's places per request of the flood, because a tenant always leaves one place in eight to others.
SPARE = 1.25


@contextlib.contextmanager
def serving_tenants(*tenants: str, flags: tuple[str, ...] = ()) -> Iterator[Trunkline]:
    """Runs a server with these tenants inside a `with` block."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        write_keys(keys, {name: f'keys = "sk-{name}-0123456789abcdef"\n' for name in tenants})
        with serving("--api-keys", str(keys), *flags) as server:
            yield server


def chats(server: Trunkline, num_chats: int, prompt_tokens: int, seed: int) -> list[float]:
    """Sends chats of tenant B one after another and returns the seconds to the first token of each."""
    lengths = ("--input-tokens", str(prompt_tokens), "--output-tokens", str(CHAT_OUTPUT_TOKENS))
    flags = ("--concurrency", "1", "--requests", str(num_chats), "--seed", str(seed), *lengths)
    requests = measure(server.base_url, *flags, api_key=key(CHATS))["requests"]
    return [request["ttft_ms"] / 1e3 for request in requests]


def key(tenant: str) -> str:
    return headers(tenant)["authorization"].removeprefix("Bearer ")


def percentile(values: list[float], percent: int) -> float:
    """Returns the percentile by nearest rank."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def metric(port: int, name: str) -> float:
    """Returns the value of a metric without labels."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics", headers=headers(CHATS))
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    sys.exit(f"error: the server has no metric `{name}`")


def wait_for_flood(port: int, num_requests: int, deadline_s: float = 60) -> None:
    """Waits until `num_requests` sequences wait or run."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if metric(port, "trunkline_queued_sequences") + metric(port, "trunkline_running_sequences") >= num_requests:
            return
        time.sleep(0.05)
    sys.exit(f"error: the flood did not reach {num_requests} requests in {deadline_s:.0f} s")


def report(alone: list[float], beside: list[float], setup: str) -> str:
    lines = ["# Fairness between tenants", "", setup, "", "| TTFT of B, ms | alone | beside the flood | ratio |"]
    lines.append("|---|---|---|---|")
    for percent in (50, 99):
        a, b = percentile(alone, percent) * 1e3, percentile(beside, percent) * 1e3
        lines.append(f"| p{percent} | {a:.0f} | {b:.0f} | {b / a:.2f} |")
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flood", type=int, default=200, help="requests that tenant A keeps open")
    parser.add_argument("--chats", type=int, default=30, help="chats of tenant B, alone and beside the flood")
    parser.add_argument("--prompt-tokens", type=int, default=600, help="tokens of each chat's prompt")
    parser.add_argument("--replicas", type=int, default=1, help="shards of the server")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--note", default="", help="a sentence about the machine")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results")
    args = parser.parse_args()
    flags = ("--max-concurrent-requests", str(int(args.flood * SPARE)), "--replicas", str(args.replicas))
    with serving_tenants(FLOOD, CHATS, flags=flags) as server:
        chats(server, 3, args.prompt_tokens, args.seed + 2)
        alone = chats(server, args.chats, args.prompt_tokens, args.seed)
        lengths = ("--input-tokens", FLOOD_PROMPT_TOKENS, "--output-tokens", FLOOD_OUTPUT_TOKENS)
        load = ("--concurrency", str(args.flood), "--seed", str(args.seed + 3), "--spread", FLOOD_SPREAD, *lengths)
        with background(server.base_url, *load, api_key=key(FLOOD)) as flood:
            wait_for_flood(server.port, args.flood)
            beside = chats(server, args.chats, args.prompt_tokens, args.seed + 1)
        preempted = metric(server.port, "trunkline_fair_preemptions_total")
    (sent,) = (load["figures"] for load in flood.loads)
    setup = (
        f"`make bench NAME=fairness`, seed {args.seed}: tenant A keeps {args.flood} requests open ({sent['completed']} "
        f"finished, {sent['failed']} failed), B sends {args.chats} chats of {args.prompt_tokens} tokens one "
        f"after another; weights are equal. {int(preempted)} of A's sequences were preempted for fairness. "
        f"{args.replicas} shards, {os.cpu_count()} CPUs ({platform.machine()}). {args.note}"
    ).strip()
    text = report(alone, beside, setup)
    print(text)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "fairness.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
