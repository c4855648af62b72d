"""Measures how a flood of one tenant affects the time to first token of another: `make bench NAME=fairness`.

python benchmark/fairness.py [--flood 200] [--chats 30] [--prompt-tokens 600] [--replicas 1] [--output FOLDER]

The server has two tenants of equal weight. Tenant B sends chats one after another, first alone and then while tenant A
keeps `--flood` requests open. Prompts are random tokens, so nothing is cached.
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
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import Trunkline, serving  # noqa: E402
from tenants import headers, write_keys  # noqa: E402

FLOOD, CHATS = "flood", "chats"
CHAT_OUTPUT_TOKENS = 16
FLOOD_PROMPT_TOKENS = (20, 300)
FLOOD_OUTPUT_TOKENS = (16, 128)
# Seconds before the flood repeats a refused request.
REFUSED_PAUSE_S = 0.2
# The server's places per request of the flood, because a tenant always leaves one place in eight to others.
SPARE = 1.25
# Ids of ordinary tokens of the embedded model.
TOKEN_IDS = range(1_000, 40_000)


def random_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    """Returns random tokens, so that nothing of the prompt is cached."""
    return rng.choices(TOKEN_IDS, k=num_tokens)


class Client:
    """One connection of one tenant."""

    def __init__(self, port: int, tenant: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.headers = headers(tenant) | {"content-type": "application/json"}

    def ask(self, prompt: list[int], max_tokens: int) -> tuple[int, float]:
        """Streams a completion to its end. Returns its status and the seconds to its first event."""
        fields = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True}
        begin = time.perf_counter()
        self.connection.request("POST", "/v1/completions", json.dumps(fields), self.headers)
        answer = self.connection.getresponse()
        answer.read(1)
        seconds = time.perf_counter() - begin
        answer.read()
        return answer.status, seconds

    def ttft_s(self, prompt: list[int], max_tokens: int) -> float:
        """Returns the seconds to the first event. Exits if the request is refused."""
        status, seconds = self.ask(prompt, max_tokens)
        if status != 200:
            sys.exit(f"error: the server answered with status {status}")
        return seconds


@contextlib.contextmanager
def serving_tenants(*tenants: str, flags: tuple[str, ...] = ()) -> Iterator[Trunkline]:
    """Runs a server with these tenants inside a `with` block."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        write_keys(keys, {name: f'keys = "sk-{name}-0123456789abcdef"\n' for name in tenants})
        with serving("--api-keys", str(keys), *flags) as server:
            yield server


class Flood:
    """Threads of tenant A that keep `num_requests` requests open until they are stopped."""

    def __init__(self, port: int, num_requests: int, seed: int) -> None:
        self.stopped = threading.Event()
        self.num_done = 0
        self.num_refused = 0
        self.lock = threading.Lock()
        self.clients = [Client(port, FLOOD) for _ in range(num_requests)]
        self.threads = [
            threading.Thread(target=self.send, args=(client, random.Random(f"{seed}-{index}")))
            for index, client in enumerate(self.clients)
        ]
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        """Closes all connections and waits for the threads."""
        self.stopped.set()
        for client in self.clients:
            if client.connection.sock is not None:
                # The server may have closed it already.
                with contextlib.suppress(OSError):
                    client.connection.sock.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()

    def send(self, client: Client, rng: random.Random) -> None:
        while not self.stopped.is_set():
            prompt = random_prompt(rng, rng.randint(*FLOOD_PROMPT_TOKENS))
            try:
                status, _ = client.ask(prompt, rng.randint(*FLOOD_OUTPUT_TOKENS))
            except (OSError, http.client.HTTPException):
                if self.stopped.is_set():
                    return
                raise
            with self.lock:
                self.num_done += status == 200
                self.num_refused += status == 429
            if status == 429:
                self.stopped.wait(REFUSED_PAUSE_S)


def chats(port: int, num_chats: int, prompt_tokens: int, seed: int) -> list[float]:
    """Sends chats of tenant B one after another and returns the seconds to the first token of each."""
    client, rng = Client(port, CHATS), random.Random(seed)
    return [client.ttft_s(random_prompt(rng, prompt_tokens), CHAT_OUTPUT_TOKENS) for _ in range(num_chats)]


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
        chats(server.port, 3, args.prompt_tokens, args.seed + 2)
        alone = chats(server.port, args.chats, args.prompt_tokens, args.seed)
        flood = Flood(server.port, args.flood, args.seed)
        wait_for_flood(server.port, args.flood)
        beside = chats(server.port, args.chats, args.prompt_tokens, args.seed + 1)
        flood.stop()
        preempted = metric(server.port, "trunkline_fair_preemptions_total")
    setup = (
        f"`make bench NAME=fairness`, seed {args.seed}: tenant A keeps {args.flood} requests open ({flood.num_done} "
        f"finished, {flood.num_refused} were refused), B sends {args.chats} chats of {args.prompt_tokens} tokens one "
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
