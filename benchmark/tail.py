"""Measures the gaps between tokens and names the causes of the longest steps: `make bench NAME=tail`.

python benchmark/tail.py [--prompt-tokens 4000] [--streams 1 8] [--rounds 3] [--output benchmark/results] [-- FLAGS]

Streams run alone, then beside a long prompt that arrives while they run. The server traces every step, and the report
lists the slowest 0.1 % (at least 5) with their causes. The time from one result to the next has three parts:

- waiting: nothing was planned, because the router was busy or had nothing to do.
- device: the shard computed, as it reports itself. What is more than usual for a step with about as many rows and as
  much context is a hold-up: other load on the machine, or writes to the store.
- rest: the way of the plan and the result between router and shard, and Python.

The cause of a step is the part that is furthest above its usual time. FLAGS are passed to `trunkline serve`, such as
`--target-itl-ms 0`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from client import Stream, stream
from tenant_client import random_prompt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import Trunkline, serving  # noqa: E402

HOST = "127.0.0.1"
PROMPT_TOKENS = 24
# A stream lasts longer than the long prompt, and begins this many tokens before it.
STREAM_TOKENS, HEAD_START_TOKENS = 700, 60
SLOWEST_SHARE, MIN_SLOWEST = 0.001, 5
# Differences that are small even for a step with little work.
SIMILAR_ROWS, SIMILAR_CONTEXT = 8, 5_000
# The largest relative difference of similar work.
SIMILAR = 0.5
# Fields of a plan that may explain why its step is slower than others with the same work.
HOLD_UPS = {"stores": "while blocks are stored", "restores": "while blocks are restored", "awaited_masks": "by a mask"}


@dataclass
class Step:
    """A step with its work and the parts of the time since the result before it, in milliseconds."""

    rows: int
    context: int
    hold_ups: list[str]
    waiting: float
    device: float
    rest: float
    usual_device: float = 0.0

    @property
    def total(self) -> float:
        return self.waiting + self.device + self.rest


@dataclass
class Round:
    """One run of a workload. Times in seconds."""

    gaps: list[float]
    ttft: float | None
    steps: list[Step]


def read_steps(lines: list[str]) -> list[Step]:
    """Joins the traces of plans and results."""
    planned: dict[int, dict[str, int]] = {}
    steps: list[Step] = []
    last_us: int | None = None
    for line in lines:
        if "step planned" not in line and "step finished" not in line:
            continue
        event = json.loads(line)
        if event["message"] == "step planned":
            planned[event["step_id"]] = event
        elif (plan := planned.pop(event["step_id"], None)) is not None:
            begin_us = max(plan["at_us"], last_us or 0)
            waiting_us = begin_us - last_us if last_us is not None else 0
            rest_us = event["at_us"] - begin_us - event["device_us"]
            parts = (part / 1e3 for part in (waiting_us, event["device_us"], rest_us))
            if plan["rows"] > 0:
                context = plan["context"] + plan["decode_context"]
                hold_ups = [text for field, text in HOLD_UPS.items() if plan.get(field)]
                steps.append(Step(plan["rows"], context, hold_ups, *parts))
            last_us = event["at_us"]
    return steps


def expect(steps: list[Step]) -> None:
    """Sets each step's usual device time: the median of at most 9 steps with similar work, itself among them."""
    for step in steps:

        def distance(other: Step, step: Step = step) -> float:
            rows = abs(other.rows - step.rows) / (step.rows + SIMILAR_ROWS)
            return rows + abs(other.context - step.context) / (step.context + SIMILAR_CONTEXT)

        nearest = sorted(steps, key=distance)[:9]
        step.usual_device = statistics.median(other.device for other in nearest if distance(other) < SIMILAR)


def cause(step: Step, usual: Step) -> str:
    """Names the part of the time that is furthest above its usual value."""
    excess = {
        "waiting for a plan": step.waiting - usual.waiting,
        "between router and shard": step.rest - usual.rest,
        " ".join(["device, held up", *step.hold_ups]): step.device - step.usual_device,
        "device, prompt" if step.rows > 4 * usual.rows else "device, context": step.usual_device - usual.device,
    }
    return max(excess, key=lambda name: excess[name])


async def run_round(server: Trunkline, num_streams: int, prompt_tokens: int, rng: random.Random) -> Round:
    """Runs the streams, and a long prompt beside them unless `prompt_tokens` is 0."""
    log_begin = len(server.log())
    prompts = [random_prompt(rng, PROMPT_TOKENS) for _ in range(num_streams)]
    streams = [asyncio.ensure_future(stream(HOST, server.port, prompt, STREAM_TOKENS)) for prompt in prompts]
    long: Stream | None = None
    if prompt_tokens:
        before = server.metrics()["trunkline_step_duration_seconds_count"]
        while server.metrics()["trunkline_step_duration_seconds_count"] < before + HEAD_START_TOKENS:
            await asyncio.sleep(0.02)
        long = await stream(HOST, server.port, random_prompt(rng, prompt_tokens), 2)
    done = await asyncio.gather(*streams)
    gaps = [
        after - event
        for answer in done
        for event, after in zip(answer.events, answer.events[1:], strict=False)
        if long is None or (after > long.sent and event < long.events[0])
    ]
    steps = read_steps(server.log()[log_begin:].splitlines())
    return Round(gaps, long.ttft_s if long else None, steps)


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def report(name: str, rounds: list[Round]) -> tuple[str, list[str]]:
    """Returns the workload's row of the table and its slowest steps."""
    gaps = [gap * 1e3 for one in rounds for gap in one.gaps]
    worst = [max(one.gaps) * 1e3 for one in rounds]
    ttfts = [one.ttft for one in rounds if one.ttft is not None]
    p50, p99, p999 = (percentile(gaps, share) for share in (0.5, 0.99, 0.999))
    ttft = f"{min(ttfts):.2f} to {max(ttfts):.2f}" if ttfts else ""
    row = f"| {name} | {p50:.1f} | {p99:.1f} | {p999:.1f} | {min(worst):.1f} to {max(worst):.1f} | {ttft} |"
    steps = [step for one in rounds for step in one.steps]
    expect(steps)
    middle = (statistics.median(getattr(step, part) for step in steps) for part in ("waiting", "device", "rest"))
    usual = Step(int(statistics.median(step.rows for step in steps)), 0, [], *middle)
    slowest = sorted(steps, key=lambda step: -step.total)[: max(MIN_SLOWEST, int(len(steps) * SLOWEST_SHARE))]
    lines = [
        f"| {name} | {step.total:.1f} | {cause(step, usual)} | {step.rows} | {step.context:,} | {step.waiting:.1f} "
        f"| {step.device:.1f} ({step.usual_device:.1f}) | {step.rest:.1f} |"
        for step in slowest
    ]
    counts = Counter(cause(step, usual) for step in steps if step.total > p99)
    print(f"{name}: steps longer than p99 by cause: {dict(counts)}", file=sys.stderr)
    return row, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt-tokens", type=int, default=4000)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="the folder for tail.md")
    parser.add_argument("flags", nargs="*", help="flags of `trunkline serve`, after `--`")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    rows, slowest = [], []
    with serving("--log-level", "trace", "--json-output", *args.flags) as server:
        # The first rounds teach the scheduler what a step costs.
        for num_streams in args.streams:
            asyncio.run(run_round(server, num_streams, args.prompt_tokens, rng))
        for num_streams in args.streams:
            for prompt_tokens in (0, args.prompt_tokens):
                name = f"{num_streams} stream" + ("s" if num_streams > 1 else "")
                name += f", a prompt of {prompt_tokens:,} tokens" if prompt_tokens else ", nothing else"
                rounds = [asyncio.run(run_round(server, num_streams, prompt_tokens, rng)) for _ in range(args.rounds)]
                row, lines = report(name, rounds)
                rows.append(row)
                slowest += lines
        error = server.metrics()["trunkline_step_time_error_ratio"]
    arguments = " ".join([f"--rounds {args.rounds}", *(["--", *args.flags] if args.flags else [])])
    text = "\n".join(
        [
            "# Gaps between tokens",
            "",
            f'`make bench NAME=tail ARGS="{arguments}"`, '
            f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}. Milliseconds between the "
            "tokens of a stream, beside a long prompt only until its first token, and seconds to the latter. "
            f"The mean relative error of predicted step times was {error:.2f} at the end.",
            "",
            "| | p50 | p99 | p99.9 | worst, by round | first token of the prompt |",
            "|---|--:|--:|--:|--:|--:|",
            *rows,
            "",
            "The slowest steps in milliseconds. In parentheses: usual for this work.",
            "",
            "| | from result to result | cause | rows | context | waiting | device | rest |",
            "|---|--:|---|--:|--:|--:|--:|--:|",
            *slowest,
            "",
        ]
    )
    print(text)
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "tail.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
