"""What a grammar costs a step: streams under one beside free ones, in turns.

    make bench NAME=structured [ARGS="--streams 8 --repeat 9"]

Each stream generates the same number of tokens from a random prompt. Under the grammars nearly every token is sampled,
so that each step needs the masks of all streams. A turn measures free streams and each grammar, in any order; ratios
are within a turn, so that what else the machine does weighs on both. `counted` has another state at each character.

On a machine with neighbours the clock tells little. What a grammar costs beside the kernels (masks, plans, messages) is
told by the time on a core of all other threads, the router's and the shard's: a step is longer by at most that time.
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
from thread_time import thread_seconds

# Of each stream before and after what is measured.
FIRST_TOKENS = 8
LAST_TOKENS = 8
PROMPT_TOKENS = 32
NUM_DRAWS = 2000
# The shard's main thread runs kernels, too.
KERNEL_THREADS = ("kernel-", "python")
# By what they show; each allows far more than the tokens that are generated.
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
    """Of one form in one turn, while all streams decode: milliseconds of a step.

    On the clock, on the device, and of all threads beside the kernels' on a core.
    """

    wall_ms: float
    step_ms: float
    beside_ms: float


@dataclass
class Steps:
    """What the router had counted at a time of this process' clock, and what threads beside the kernels had taken."""

    at: float
    num: float
    seconds: float
    beside: float


def seconds_beside(server: Trunkline) -> float:
    """Time on a core of the router's threads and of those of the shard that run no kernels, in seconds."""
    shard = thread_seconds(server.shard_pid())
    others = (seconds for name, seconds in shard.items() if not name.startswith(KERNEL_THREADS))
    return sum(thread_seconds(server.router_pid()).values()) + sum(others)


def measure(
    server: Trunkline, chooser: random.Random, num_streams: int, fields: dict[str, Any], num_tokens: int
) -> Turn:
    """A step gives each stream a token: the time between two readings of the router's counters, by steps.

    Counting the events of a stream would not do: a forced first token is told before the prompts of the others are
    computed, and the first half of a character sends none.
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
        body = {"max_tokens": num_tokens, "temperature": 0, "stream": True} | fields
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
    """Where their median lies in 95 of 100 cases, by drawing as many of them again, with repetition."""
    medians = sorted(statistics.median(chooser.choices(ratios, k=len(ratios))) for _ in range(NUM_DRAWS))
    return medians[int(NUM_DRAWS * 0.025)], medians[int(NUM_DRAWS * 0.975)]


def percent(ratio: float) -> str:
    """How much more than 1 it is."""
    return f"{(ratio - 1) * 100:+.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=9, help="turns")
    parser.add_argument("--tokens", type=int, default=256, help="of each stream; fewer and more turns tell more")
    parser.add_argument("--forms", default=",".join(FORMS), help="which, the first is what others are compared with")
    options = parser.parse_args()
    forms = options.forms.split(",")
    chooser = random.Random(1)
    turns: dict[str, list[Turn]] = {form: [] for form in forms}
    with serving() as server:
        measure(server, chooser, 1, FORMS["schema"], options.tokens)
        began = time.monotonic()
        for turn in range(options.repeat):
            # Whatever the machine does in between meets each form as often.
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
            f"{form:8} a step at {options.streams} streams takes {min(times):5.2f} ms at least "
            f"({percent(min(times) / min(free))}), median {statistics.median(times):5.2f}, "
            f"of turns {percent(statistics.median(ratios))} ({percent(low)} to {percent(high)}); "
            f"of it on the device {step_ms:5.2f}; threads beside the kernels {statistics.median(more):+.3f} ms "
            f"({statistics.median(longer):+.1%} of a step, {most[0]:+.1%} to {most[1]:+.1%})"
        )


if __name__ == "__main__":
    main()
