"""What a flood of one tenant does to the time to the first token of another.

python benchmark/fairness.py [--flood 200] [--chats 30] [--prompt-tokens 600] [--output benchmark/results]

A server with two tenants of equal weight. Tenant B sends chats one after another, alone first; then tenant A has as
many requests open as `--flood` says, for as long as it takes (one that ends is followed by the next), and B sends as
many chats again. Prompts are random tokens, so nothing is cached.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import platform
import random
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import Trunkline  # noqa: E402

KEYS = {"a": "sk-flood-0123456789abcdef", "b": "sk-chats-0123456789abcdef"}
# Ids of ordinary tokens of the embedded model.
FIRST_TOKEN, LAST_TOKEN = 1_000, 40_000
CHAT_OUTPUT_TOKENS = 16
FLOOD_PROMPT_TOKENS = (20, 300)
FLOOD_OUTPUT_TOKENS = (16, 128)
# A flood's place that was refused is asked for again after so long.
REFUSED_PAUSE_S = 0.2
# Places of the server for each request of the flood: a tenant leaves one in eight to others.
SPARE = 1.25


class Client:
    """One connection of one tenant."""

    def __init__(self, port: int, tenant: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.headers = {"authorization": f"Bearer {KEYS[tenant]}", "content-type": "application/json"}

    def ask(self, prompt: list[int], max_tokens: int) -> tuple[int, float]:
        """Status, and seconds to the first event; the rest of the answer is read away."""
        fields = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        begin = time.perf_counter()
        self.connection.request("POST", "/v1/completions", json.dumps(fields), self.headers)
        answer = self.connection.getresponse()
        answer.read(1)
        seconds = time.perf_counter() - begin
        answer.read()
        return answer.status, seconds


class Flood:
    """Requests of tenant A, so many open at a time until it is stopped."""

    def __init__(self, port: int, num_requests: int, seed: int) -> None:
        self.stopped = threading.Event()
        self.num_done = 0
        self.num_refused = 0
        self.lock = threading.Lock()
        self.clients = [Client(port, "a") for _ in range(num_requests)]
        self.threads = [
            threading.Thread(target=self.send, args=(client, random.Random(f"{seed}-{index}")))
            for index, client in enumerate(self.clients)
        ]
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Hangs up."""
        self.stopped.set()
        for client in self.clients:
            if client.connection.sock is not None:
                # It may have been closed by the other side meanwhile.
                with contextlib.suppress(OSError):
                    client.connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()

    def send(self, client: Client, dice: random.Random) -> None:
        """One request after another."""
        while not self.stopped.is_set():
            prompt = tokens(dice, dice.randint(*FLOOD_PROMPT_TOKENS))
            try:
                status, _ = client.ask(prompt, dice.randint(*FLOOD_OUTPUT_TOKENS))
            except (OSError, http.client.HTTPException):
                if self.stopped.is_set():
                    return
                raise
            with self.lock:
                self.num_done += status == 200
                self.num_refused += status == 429
            if status == 429:
                self.stopped.wait(REFUSED_PAUSE_S)


def tokens(dice: random.Random, count: int) -> list[int]:
    """A prompt that nobody has cached."""
    return [dice.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(count)]


def chats(port: int, num_chats: int, prompt_tokens: int, seed: int) -> list[float]:
    """Seconds to the first token of tenant B's chats, one after another."""
    client, dice = Client(port, "b"), random.Random(seed)
    times = []
    for _ in range(num_chats):
        status, seconds = client.ask(tokens(dice, prompt_tokens), CHAT_OUTPUT_TOKENS)
        if status != 200:
            sys.exit(f"error: status {status} for the second tenant")
        times.append(seconds)
    return times


def percentile(values: list[float], percent: int) -> float:
    """Nearest rank."""
    return sorted(values)[-(-len(values) * percent // 100) - 1]


def metric(port: int, name: str) -> float:
    """One of the server's numbers."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/metrics", headers={"authorization": f"Bearer {KEYS['b']}"})
    for line in connection.getresponse().read().decode().splitlines():
        if line.startswith(f"{name} "):
            return float(line.split()[1])
    sys.exit(f"error: the server has no metric `{name}`")


def wait_for_flood(port: int, num_requests: int, deadline_s: float = 60) -> None:
    """Until so many requests wait or run."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if metric(port, "trunkline_queued_sequences") + metric(port, "trunkline_running_sequences") >= num_requests:
            return
        time.sleep(0.05)
    sys.exit("error: the flood does not come")


def report(alone: list[float], beside: list[float], setup: str) -> str:
    """The report as Markdown."""
    lines = ["# Fairness between tenants", "", setup, "", "| TTFT of B, ms | alone | beside the flood | ratio |"]
    lines.append("|---|---|---|---|")
    for percent in (50, 99):
        a, b = percentile(alone, percent) * 1e3, percentile(beside, percent) * 1e3
        lines.append(f"| p{percent} | {a:.0f} | {b:.0f} | {b / a:.2f} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Starts a server, measures, writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flood", type=int, default=200, help="requests that tenant A has open")
    parser.add_argument("--chats", type=int, default=30, help="of tenant B, alone and beside the flood")
    parser.add_argument("--prompt-tokens", type=int, default=600, help="of B's chats")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--note", default="", help="a sentence about the machine")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.touch(mode=0o600)
        keys.write_text("".join(f'[tenants.{name}]\nkeys = "{key}"\n' for name, key in KEYS.items()))
        limit = str(int(args.flood * SPARE))
        server = Trunkline("--api-keys", str(keys), "--max-concurrent-requests", limit)
        try:
            server.wait_ready()
            chats(server.port, 3, args.prompt_tokens, args.seed + 2)
            alone = chats(server.port, args.chats, args.prompt_tokens, args.seed)
            flood = Flood(server.port, args.flood, args.seed)
            wait_for_flood(server.port, args.flood)
            beside = chats(server.port, args.chats, args.prompt_tokens, args.seed + 1)
            flood.stop()
            preempted = metric(server.port, "trunkline_fair_preemptions_total")
        finally:
            server.stop()
    setup = (
        f"`make bench NAME=fairness`, seed {args.seed}: tenant A keeps {args.flood} requests open ({flood.num_done} were "
        f"done, {flood.num_refused} refused), B sends {args.chats} chats of {args.prompt_tokens} tokens one after "
        f"another; weights are equal. {int(preempted)} of A's sequences gave way. "
        f"{os.cpu_count()} CPUs ({platform.machine()}). "
        f"{args.note}"
    ).strip()
    text = report(alone, beside, setup)
    print(text)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "fairness.md").write_text(text)
    figures = {"alone_s": alone, "beside_s": beside, "flood": args.flood, "prompt_tokens": args.prompt_tokens}
    (args.output / "fairness.json").write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
