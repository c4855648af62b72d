"""What a grammar costs a step: streams under one beside free ones, in turns.

    make bench-structured [ARGS="--streams 8 --repeat 5"]

Each stream generates the same number of tokens from a random prompt. Under the grammar every token but the first few is
a character of a long text, so that nothing is forced: each step needs the masks of all streams.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
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
    "regex": {"guided_regex": "[a-zA-Z ,.]{2000,4000}"},
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
}


def token_ms(server: Trunkline, chooser: random.Random, num_streams: int, fields: dict[str, Any]) -> float:
    """Milliseconds between the tokens of a stream, median over all: a step, and what lies between two."""
    prompts = [chooser.choices(range(1000, 40_000), k=PROMPT_TOKENS) for _ in range(num_streams)]

    async def all_streams() -> list[Stream]:
        body = {"max_tokens": NUM_TOKENS, "temperature": 0, "stream": True} | fields
        sent = (post("127.0.0.1", server.port, "/v1/completions", body | {"prompt": p}) for p in prompts)
        return await asyncio.gather(*sent)

    done = asyncio.run(all_streams())
    begin, end = max(s.events[0] for s in done), min(s.events[-1] for s in done)
    tokens = sum(begin < t <= end for s in done for t in s.events)
    return (end - begin) / tokens * num_streams * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    chooser = random.Random(1)
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    with serving() as server:
        token_ms(server, chooser, 1, FORMS["schema"])
        for _ in range(options.repeat):
            for form, fields in FORMS.items():
                times[form].append(token_ms(server, chooser, options.streams, fields))
    free = min(times["free"])
    for form, all_ms in times.items():
        best = min(all_ms)
        print(
            f"{form:8} {best:7.2f} ms a token at {options.streams} streams (median {statistics.median(all_ms):.2f}), "
            f"{(best / free - 1) * 100:+.1f} %"
        )


if __name__ == "__main__":
    main()
