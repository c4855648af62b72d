"""What a grammar costs a step: streams under one beside free ones, in turns.

    make bench-structured [ARGS="--streams 8 --repeat 9"]

Each stream generates the same number of tokens from a random prompt. Under the grammars nearly every token is sampled,
so that each step needs the masks of all streams. A turn measures free streams, then each grammar; ratios are within a
turn, so that what else the machine does weighs on both. `counted` is the worst case: its states differ at each
character.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration-tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from client import Stream, post
from harness import Trunkline, serving

NUM_TOKENS = 96
PROMPT_TOKENS = 32
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
    """Of one form in one turn: milliseconds of a token and of the device's step, and steps."""

    token_ms: float
    step_ms: float
    num_steps: float


def measure(server: Trunkline, chooser: random.Random, num_streams: int, fields: dict[str, Any]) -> Turn:
    """Milliseconds between the tokens of a stream, median over all: a step, and what lies between two."""
    prompts = [chooser.choices(range(1000, 40_000), k=PROMPT_TOKENS) for _ in range(num_streams)]

    async def all_streams() -> list[Stream]:
        body = {"max_tokens": NUM_TOKENS, "temperature": 0, "stream": True} | fields
        sent = (post("127.0.0.1", server.port, "/v1/completions", body | {"prompt": p}) for p in prompts)
        return await asyncio.gather(*sent)

    before = server.metrics()
    done = asyncio.run(all_streams())
    after = server.metrics()
    begin, end = max(s.events[0] for s in done), min(s.events[-1] for s in done)
    tokens = sum(begin < t <= end for s in done for t in s.events)
    steps, seconds = (
        after[name] - before[name] for name in (f"trunkline_step_duration_seconds_{what}" for what in ("count", "sum"))
    )
    return Turn((end - begin) / tokens * num_streams * 1e3, seconds / steps * 1e3, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--forms", default=",".join(FORMS), help="which, the first is what others are compared with")
    options = parser.parse_args()
    forms = options.forms.split(",")
    chooser = random.Random(1)
    turns: dict[str, list[Turn]] = {form: [] for form in forms}
    with serving() as server:
        measure(server, chooser, 1, FORMS["schema"])
        for _ in range(options.repeat):
            for form in forms:
                turns[form].append(measure(server, chooser, options.streams, FORMS[form]))
    base = turns[forms[0]]
    for form, of_form in turns.items():
        times, free = [turn.token_ms for turn in of_form], [turn.token_ms for turn in base]
        ratio = statistics.median(a / b for a, b in zip(times, free, strict=True))
        step_ms = statistics.median(turn.step_ms for turn in of_form)
        num_steps = statistics.median(turn.num_steps for turn in of_form)
        print(
            f"{form:8} {min(times):7.2f} ms a token at {options.streams} streams, "
            f"{(min(times) / min(free) - 1) * 100:+.1f} %; median {statistics.median(times):.2f}, of turns "
            f"{(ratio - 1) * 100:+.1f} %; step {step_ms:.2f} ms, {num_steps:.0f} steps"
        )


if __name__ == "__main__":
    main()
