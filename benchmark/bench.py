"""Measures one server through HTTP, and the time that router, gRPC and Python add to a step.

    make bench NAME=http [ARGS="--repeat 5 --model PATH"]

Starts `trunkline serve` on a free port, sends streaming requests and prints a table of medians with their spread. The
figures of a shared machine are noisy, so nothing here is an assertion.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration-tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from client import Stream, stream
from harness import Trunkline, serving

DECODE_TOKENS = 128
DECODE_PROMPT = 32


class Bench:
    def __init__(self, server: Trunkline, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)

    def prompt(self, length: int) -> list[int]:
        """Returns random tokens, so that no two prompts share a prefix and nothing is a prefix hit by accident."""
        return self.random.choices(range(1000, 40_000), k=length)

    def run(self, prompts: list[list[int]], max_tokens: int) -> list[Stream]:
        async def all_streams() -> list[Stream]:
            return await asyncio.gather(*(stream("127.0.0.1", self.server.port, p, max_tokens) for p in prompts))

        return asyncio.run(all_streams())

    def decode(self, streams: int) -> tuple[float, float]:
        """Returns output tokens per second while all streams run, and the median ITL in ms."""
        done = self.run([self.prompt(DECODE_PROMPT) for _ in range(streams)], DECODE_TOKENS)
        begin = max(s.events[0] for s in done)
        end = min(s.events[-1] for s in done)
        tokens = sum(begin < t <= end for s in done for t in s.events)
        return tokens / (end - begin), statistics.median(gap for s in done for gap in s.itl_s) * 1e3

    def overhead(self) -> tuple[float, float]:
        """Returns the device time of a step, and the time that router, gRPC, Python and HTTP add to it, in ms.

        The prompt of the one stream has one token, so that every step is a decode. The wall time of the whole answer,
        including the round trip, is divided by the number of steps.
        """
        before = self.device_time()
        (done,) = self.run([self.prompt(1)], DECODE_TOKENS)
        after = self.device_time()
        steps = after[1] - before[1]
        device_s, wall_s = after[0] - before[0], done.events[-1] - done.sent
        return device_s / steps * 1e3, (wall_s - device_s) / steps * 1e3

    def device_time(self) -> tuple[float, float]:
        """Returns the total device time of all steps so far in seconds, and their number."""
        metrics = self.server.metrics()
        name = "trunkline_step_duration_seconds"
        return metrics[f"{name}_sum"], metrics[f"{name}_count"]

    def prefill(self, length: int) -> float:
        """Returns prompt tokens per second, from the time to the first token of one prompt."""
        (done,) = self.run([self.prompt(length)], 1)
        return length / done.ttft_s

    def history(self, length: int) -> tuple[float, float, int]:
        """Returns the TTFT in ms of a cold history and of the same with 32 more tokens, and the tokens hit then."""
        prompt = self.prompt(length)
        (cold,) = self.run([prompt], 8)
        (warm,) = self.run([prompt + self.prompt(32)], 8)
        return cold.ttft_s * 1e3, warm.ttft_s * 1e3, warm.usage["prompt_tokens_details"]["cached_tokens"]


def spread(values: list[float], digits: int = 0) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f} to {max(values):,.{digits}f})"


def report(server: Trunkline, repeat: int) -> None:
    bench = Bench(server, seed=time.time_ns())
    info = httpx.get(f"{server.base_url}/info").json()
    print(f"\n{info.get('model_id')}; medians (min to max) of {repeat}, through HTTP\n")
    bench.decode(8)
    print("| measure | value |\n|---|---|")
    for streams in (1, 8, 32):
        rates, gaps = zip(*(bench.decode(streams) for _ in range(repeat)), strict=True)
        print(f"| decode, {streams} streams, tok/s | {spread(list(rates))} |")
        print(f"| … ITL p50, ms | {spread(list(gaps), 2)} |")
    device, added = zip(*(bench.overhead() for _ in range(repeat)), strict=True)
    print(f"| one stream: device time a step, ms | {spread(list(device), 3)} |")
    print(f"| … and what router, gRPC, Python and HTTP add, ms | {spread(list(added), 3)} |")
    for length in (512, 2048):
        print(f"| prefill of {length}, tok/s | {spread([bench.prefill(length) for _ in range(repeat)])} |")
    cold, warm, hit = zip(*(bench.history(6000) for _ in range(repeat)), strict=True)
    print(f"| TTFT of a 6,000-token history, cold, ms | {spread(list(cold))} |")
    print(f"| … and with 32 more tokens ({hit[0]} hit), ms | {spread(list(warm), 1)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each measurement")
    parser.add_argument("--model", help="model for `trunkline serve`; default: the embedded one")
    parser.add_argument("server_args", nargs="*", help="passed to `trunkline serve`, after `--`")
    args = parser.parse_args()
    begin = time.monotonic()
    with serving(*args.server_args, model=args.model) as server:
        ready = time.monotonic() - begin
        server.complete([504], max_tokens=1)
        print(f"process start to ready {ready:.2f} s, to first token {time.monotonic() - begin:.2f} s")
        report(server, args.repeat)


if __name__ == "__main__":
    main()
