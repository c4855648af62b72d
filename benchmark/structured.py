"""Measures the cost of a grammar per step, by comparing constrained streams with free ones.

    make bench NAME=structured [ARGS="--streams 8 --repeat 9"]

Each stream generates the same number of tokens from a random prompt. The grammars force hardly any token, so that each
step needs the masks of all streams. Drafts are off, because forms that repeat themselves would have longer steps with
more tokens. A turn measures free streams and each grammar in random order, and ratios are taken
within a turn, so that other load on the machine affects both. The grammar `counted` has a new state at each character.

Wall time says little on a busy machine. The cost of a grammar outside the kernels (masks, plans, messages) is therefore
also measured as the CPU time of all other threads of router and shard, which bounds the additional time of a step.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration-tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from client import post
from harness import Trunkline, serving

# Tokens of each stream before and after the measurement.
FIRST_TOKENS = 8
LAST_TOKENS = 8
PROMPT_TOKENS = 32
NUM_DRAWS = 2000
# The shard's main thread runs kernels as well.
KERNEL_THREADS = ("kernel-", "python")
# Each grammar allows far longer outputs than are generated.
FORMS: dict[str, dict[str, Any]] = {
    "free": {"ignore_eos": True},
    "schema": {
        "guided_json": {
            "type": "array",
            "minItems": 200,
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string", "minLength": 30}, "count": {"type": "integer"}},
                "required": ["name", "count"],
                "additionalProperties": False,
            },
        }
    },
    "text": {"guided_json": {"type": "array", "minItems": 99, "items": {"type": "string"}}},
    "regex": {"guided_regex": r"([A-Za-z]+[ ,])*[0-9]{400}"},
    "counted": {"guided_regex": "[a-zA-Z ,.]{2000,4000}"},
}


@dataclass
class Turn:
    """Times per step of one form in one turn, while all streams decode.

    `wall_ms` is wall time, `step_ms` device time, and `beside_ms` the CPU time of all threads that run no kernels.
    """

    wall_ms: float
    step_ms: float
    beside_ms: float


@dataclass
class Steps:
    """The router's counts of steps and their seconds, and the CPU seconds of threads without kernels, at one time."""

    at: float
    num: float
    seconds: float
    beside: float


def thread_seconds(pid: int) -> dict[str, float]:
    """Returns the CPU seconds of all living threads of a process, summed by thread name."""
    seconds: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
            # The fields are nanoseconds on a core, nanoseconds waiting for one, and number of time slices.
            on_core = int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
        seconds[name] = seconds.get(name, 0.0) + on_core / 1e9
    return seconds


def seconds_beside(server: Trunkline) -> float:
    """Returns the CPU seconds of the router's threads, and of the shard's threads that run no kernels."""
    shard = thread_seconds(server.shard_pid())
    others = (seconds for name, seconds in shard.items() if not name.startswith(KERNEL_THREADS))
    return sum(thread_seconds(server.router_pid()).values()) + sum(others)


def measure(
    server: Trunkline, chooser: random.Random, num_streams: int, fields: dict[str, Any], num_tokens: int
) -> Turn:
    """Measures times per step between two readings of the router's counters.

    Events of a stream cannot be counted instead, because a forced first token is sent before other prompts are
    computed, and half a character sends no event.
    """
    prompts = [chooser.choices(range(1000, 40_000), k=PROMPT_TOKENS) for _ in range(num_streams)]
    arrived = [0] * num_streams

    async def read() -> Steps:
        metrics = await asyncio.to_thread(server.metrics)
        return Steps(
            time.monotonic(),
            metrics["trunkline_step_duration_seconds_count"],
            metrics["trunkline_step_duration_seconds_sum"],
            await asyncio.to_thread(seconds_beside, server),
        )

    async def all_streams() -> tuple[Steps, Steps]:
        body = {"max_tokens": num_tokens, "temperature": 0, "stream": True, "speculation": False} | fields
        all_decode, one_ends = asyncio.Event(), asyncio.Event()

        async def send(index: int) -> None:
            def watch(num_events: int) -> None:
                arrived[index] = num_events
                if min(arrived) >= FIRST_TOKENS:
                    all_decode.set()
                if num_events >= num_tokens - LAST_TOKENS:
                    one_ends.set()

            request = body | {"prompt": prompts[index]}
            await post("127.0.0.1", server.port, "/v1/completions", request, watch=watch)
            one_ends.set()

        streams = asyncio.gather(*(send(index) for index in range(num_streams)))
        await all_decode.wait()
        begin = await read()
        await one_ends.wait()
        end = await read()
        await streams
        return begin, end

    begin, end = asyncio.run(all_streams())
    num_steps = end.num - begin.num
    of_step = 1e3 / num_steps
    return Turn(
        (end.at - begin.at) * of_step, (end.seconds - begin.seconds) * of_step, (end.beside - begin.beside) * of_step
    )


def interval(ratios: list[float], chooser: random.Random) -> tuple[float, float]:
    """Returns the bootstrapped 95 % confidence interval of the median."""
    medians = sorted(statistics.median(chooser.choices(ratios, k=len(ratios))) for _ in range(NUM_DRAWS))
    return medians[int(NUM_DRAWS * 0.025)], medians[int(NUM_DRAWS * 0.975)]


def percent(ratio: float) -> str:
    """Formats by how much a ratio exceeds 1."""
    return f"{(ratio - 1) * 100:+.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=9, help="turns")
    parser.add_argument("--tokens", type=int, default=256, help="output tokens of each stream")
    parser.add_argument("--forms", default=",".join(FORMS), help="forms; the others are compared with the first")
    options = parser.parse_args()
    forms = options.forms.split(",")
    chooser = random.Random(1)
    turns: dict[str, list[Turn]] = {form: [] for form in forms}
    with serving() as server:
        measure(server, chooser, 1, FORMS["schema"], options.tokens)
        began = time.monotonic()
        for turn in range(options.repeat):
            # In random order, so that other load on the machine affects all forms equally.
            for form in chooser.sample(forms, k=len(forms)):
                turns[form].append(measure(server, chooser, options.streams, FORMS[form], options.tokens))
            print(f"turn {turn + 1} of {options.repeat}, after {time.monotonic() - began:.0f} s", file=sys.stderr)
    free = [turn.wall_ms for turn in turns[forms[0]]]
    free_beside = [turn.beside_ms for turn in turns[forms[0]]]
    for form, of_form in turns.items():
        times = [turn.wall_ms for turn in of_form]
        ratios = [a / b for a, b in zip(times, free, strict=True)]
        low, high = interval(ratios, chooser)
        step_ms = statistics.median(turn.step_ms for turn in of_form)
        more = [turn.beside_ms - beside for turn, beside in zip(of_form, free_beside, strict=True)]
        longer = [a / b for a, b in zip(more, free, strict=True)]
        most = interval(longer, chooser)
        print(
            f"{form:8} a step at {options.streams} streams takes at least {min(times):5.2f} ms "
            f"({percent(min(times) / min(free))}), median {statistics.median(times):5.2f}, "
            f"ratio within turns {percent(statistics.median(ratios))} ({percent(low)} to {percent(high)}); "
            f"device time {step_ms:5.2f}; threads without kernels {statistics.median(more):+.3f} ms "
            f"({statistics.median(longer):+.1%} of a step, {most[0]:+.1%} to {most[1]:+.1%})"
        )


if __name__ == "__main__":
    main()
