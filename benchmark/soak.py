"""Serves a steady mixed load for hours and looks for growth: `make soak HOURS=1`.

The load is chats that grow turn by turn, in several dialects, whole and streamed, some with structured output, some
cancelled. Every few seconds it samples the resident memory, open files and threads of each process, and the time of a
step. At the end it compares the last minutes with the first ten (below half an hour: the last sixth with the first),
writes soak.json and soak.svg, and exits with 1 if something grew beyond its bound.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from line_chart import line_chart

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import Trunkline, resident_bytes, serving, wait_for  # noqa: E402

CHAT, COMPLETIONS, RESPONSES, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]}
WORDS = "river train snow tree lamp stone bread cloud paper horse garden winter copper island music"
# What the server keeps is full before the measurement begins, so that only leaks grow.
POOL_TOKENS, STORE, RESPONSE_BYTES = 16_384, "256MiB", 1 << 20
SAMPLE_S = 5.0
FIRST_S = 600.0
MAX_POINTS = 60
# Measure → largest growth: (factor, addend). Memory and files may grow by the addend alone, times by the factor.
# The shard's processor time for a step hardly depends on other load on the machine, unlike a step's duration.
BOUNDS = {"MiB": (1.1, 16.0), "open files": (1.0, 16.0), "threads": (1.0, 4.0), "step ms": (1.5, 1.0)}
BOUNDS |= {"step processor ms": (1.25, 1.0)}
PROCESSES = {"router": "trunkline-router", "shard": "trunkline_server"}


class Load:
    """Clients with conversations."""

    def __init__(self, server: Trunkline, seed: int) -> None:
        self.server, self.seed = server, seed
        self.over = threading.Event()
        self.done = Counter[str]()
        self._lock = threading.Lock()

    def client(self, number: int) -> None:
        """Leads conversations one after the other."""
        draw = random.Random(f"{self.seed} {number}")
        with httpx.Client(base_url=self.server.base_url, timeout=300) as client:
            while not self.over.is_set():
                path = draw.choice([CHAT, CHAT, COMPLETIONS, RESPONSES, ANTHROPIC])
                messages: list[dict[str, str]] = []
                for _ in range(draw.randint(2, 12)):
                    words = " ".join(draw.choices(WORDS.split(), k=draw.randint(5, 40)))
                    messages.append({"role": "user", "content": f"Say something about {words}."})
                    if self.over.is_set() or not self.turn(client, draw, path, messages):
                        break

    def turn(self, client: httpx.Client, draw: random.Random, path: str, messages: list[dict[str, str]]) -> bool:
        """Sends one turn and appends the answer. Returns false if it was cancelled."""
        body: dict[str, Any] = {"temperature": 0.8, "stream": draw.random() < 0.5}
        body["max_output_tokens" if path == RESPONSES else "max_tokens"] = draw.randint(4, 48)
        if path == COMPLETIONS:
            body["prompt"] = "\n".join(message["content"] for message in messages)
        else:
            body["input" if path == RESPONSES else "messages"] = messages
        is_structured = path == CHAT and draw.random() < 0.3
        if is_structured:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
        is_cancelled = body["stream"] and draw.random() < 0.2
        with client.stream("POST", path, json=body) as answer:
            if answer.status_code != 200:
                raise RuntimeError(f"{path}: {answer.status_code} {answer.read().decode()}")
            num_bytes = 0
            for data in answer.iter_bytes():
                num_bytes += len(data)
                if is_cancelled:
                    break
        with self._lock:
            self.done[path] += 1
            self.done["structured"] += is_structured
            self.done["cancelled"] += is_cancelled
        messages.append({"role": "assistant", "content": draw.choice(WORDS.split()) * (num_bytes % 7 + 1)})
        return not is_cancelled


class Samples:
    """Measures by name, such as `router MiB`, each with (seconds, value) pairs."""

    def __init__(self, server: Trunkline) -> None:
        self.server = server
        self.by_name: dict[str, list[tuple[float, float]]] = {}
        self._begin = time.monotonic()
        (router,), (shard,) = (server.pids(command) for command in PROCESSES.values())
        self._pids = {"launcher": server.process.pid, "router": router, "shard": shard}
        self._steps = self._step_counters()

    def _step_counters(self) -> tuple[float, float, float]:
        """Returns the seconds of all steps, the processor seconds of the shard, and the number of steps."""
        metrics = self.server.metrics()
        name = "trunkline_step_duration_seconds"
        return metrics[f"{name}_sum"], processor_s(self._pids["shard"]), metrics[f"{name}_count"]

    def take(self) -> None:
        at = time.monotonic() - self._begin
        values = {}
        for name, pid in self._pids.items():
            values[f"{name} MiB"] = resident_bytes(pid) / (1 << 20)
            values[f"{name} open files"] = num_entries(f"/proc/{pid}/fd")
            values[f"{name} threads"] = num_entries(f"/proc/{pid}/task")
        steps = self._step_counters()
        seconds, processor, count = (new - old for new, old in zip(steps, self._steps, strict=True))
        if count > 0:
            values["step ms"], values["step processor ms"] = seconds / count * 1e3, processor / count * 1e3
        self._steps = steps
        for name, value in values.items():
            self.by_name.setdefault(name, []).append((at, value))

    def growth(self, window_s: float) -> dict[str, dict[str, Any]]:
        """Returns each measure's medians over the first and the last `window_s`, and the bound of the latter."""
        grown = {}
        for name, samples in self.by_name.items():
            end = samples[-1][0]
            first = statistics.median(value for at, value in samples if at <= window_s)
            last = statistics.median(value for at, value in samples if at >= end - window_s)
            factor, addend = next(bound for measure, bound in BOUNDS.items() if name.endswith(measure))
            bound = first * factor + addend
            grown[name] = {"first": first, "last": last, "bound": bound, "is_too_high": last > bound}
        return grown

    def binned(self) -> dict[str, list[tuple[float, float]]]:
        """Returns medians of at most `MAX_POINTS` bins of each measure, by minute."""
        points = {}
        for name, samples in self.by_name.items():
            size = -(-len(samples) // MAX_POINTS)
            bins = [samples[start : start + size] for start in range(0, len(samples), size)]
            points[name] = [(bin_[-1][0] / 60, statistics.median(value for _, value in bin_)) for bin_ in bins]
        return points

    def chart(self, window_s: float) -> str:
        """Draws each measure relative to the median of its first `window_s`."""
        growth = self.growth(window_s)
        first = {name: row["first"] or 1.0 for name, row in growth.items()}
        series = {name: [(at, value / first[name]) for at, value in line] for name, line in self.binned().items()}
        title = "growth under a steady load, relative to the beginning"
        return line_chart(title, "minutes", series, y_text="{:.2f}".format, is_linear=True)


def num_entries(folder: str) -> int:
    return sum(1 for _ in Path(folder).iterdir())


def processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fill(server: Trunkline) -> None:
    """Computes prompts until no block of the pool is unused."""
    for number in range(POOL_TOKENS):
        if server.metrics()["trunkline_kv_blocks_free"] == 0:
            return
        server.complete([1000 + (31 * position + 7919 * number) % 40_000 for position in range(400)], max_tokens=1)
    raise RuntimeError("the pool does not become full")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results")
    args = parser.parse_args()
    seconds = args.hours * 3600
    window_s = FIRST_S if args.hours >= 0.5 else seconds / 6
    # Several threads wait for each other at every step, so that other load on the machine would count several times.
    flags = ["--threads", "1", "--max-batch-total-tokens", str(POOL_TOKENS)]
    flags += ["--max-response-store-bytes", str(RESPONSE_BYTES)]
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        flags += ["--kv-disk-path", folder, "--kv-disk-size", STORE]
        with serving(*flags) as server, ThreadPoolExecutor(args.clients) as pool:
            load = Load(server, args.seed)
            clients = [pool.submit(load.client, number) for number in range(args.clients)]
            try:
                fill(server)
                samples, load_begin = Samples(server), os.getloadavg()[0]
                end = time.monotonic() + seconds
                while time.monotonic() < end and not any(client.done() for client in clients):
                    time.sleep(SAMPLE_S)
                    samples.take()
            finally:
                load.over.set()
            for client in clients:
                client.result()
            wait_for(server.holds_nothing, "all gauges to be 0", 60)
    growth = samples.growth(window_s)
    print(f"load of the machine: {load_begin:.1f} at the beginning, {os.getloadavg()[0]:.1f} at the end")
    result = {"hours": args.hours, "clients": args.clients, "seed": args.seed, "window_s": window_s}
    result |= {"requests": dict(load.done), "growth": growth, "by_minute": samples.binned()}
    args.output.mkdir(parents=True, exist_ok=True)
    rounded = json.loads(json.dumps(result), parse_float=lambda text: round(float(text), 2))
    (args.output / "soak.json").write_text(json.dumps(rounded) + "\n", encoding="utf-8")
    (args.output / "soak.svg").write_text(samples.chart(window_s), encoding="utf-8")
    print(f"{dict(load.done)}\n\n| | first | last | at most |\n|---|--:|--:|--:|")
    for name, row in growth.items():
        print(f"| {name} | {row['first']:.1f} | {row['last']:.1f} | {row['bound']:.1f} |")
    grown = [name for name, row in growth.items() if row["is_too_high"]]
    if grown:
        hint = "hint: other load on the machine lengthens steps, but not their processor time"
        print(f"error: grew beyond the bound: {', '.join(grown)}; {hint}", file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
