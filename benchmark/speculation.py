"""Measures what drafts gain, and what they cost where nothing repeats.

    make bench NAME=speculation [ARGS="--streams 1,8 --repeat 5 --save"]

Each case runs with and without drafts (`speculation: false`) in turn on one server, twice each, with equal prompts and
seeds. The output of a request must be equal with both. A ratio is the decode time without drafts over that with drafts,
the median over the turns; a decode time is that from the first token to the last.

The model is the embedded one, which is small: it copies what it is given a good start of, and writes prose that does
not repeat itself only if it samples. The cases stand for what clients do; the texts are files of this repository.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

from load import ROOT, line, measure_all  # isort: skip  (finds the harness)
from harness import Trunkline, http, serving

OUTPUT_TOKENS = 200
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "city": {"type": "string"}, "year": {"type": "integer"}},
    "required": ["name", "city", "year"],
    "additionalProperties": False,
}
NAMES = ("Ada Lovelace", "Alan Turing", "Grace Hopper", "Edsger Dijkstra", "Barbara Liskov", "Donald Knuth")
CITIES = ("London", "Cambridge", "New York", "Rotterdam", "Los Angeles", "Milwaukee")


def passage(path: str, number: int, num_chars: int) -> str:
    """Returns the `number`-th part of a file of this repository, from the start of a line."""
    text = (ROOT / path).read_text()
    begin = number * 700 % max(len(text) - num_chars, 1)
    begin = text.find("\n", begin) + 1
    return text[begin : begin + num_chars]


def edit(number: int) -> dict[str, Any]:
    """The output copies most of the prompt."""
    file = passage("router/scheduler/src/fairness.rs", number, 1200)
    prompt = f"The file:\n\n{file}\n\nThe same file again, line by line:\n\n{file[:200]}"
    return {"prompt": prompt, "temperature": 0}


def quote(number: int) -> dict[str, Any]:
    text = passage("docs/operations.md", number, 1500)
    sentence = text[text.find(". ") + 2 :][:60]
    prompt = f"{text}\n\nThe most important sentences of this text, quoted:\n\n> {text[:160]}\n\n> {sentence}"
    return {"prompt": prompt, "temperature": 0}


def extract(number: int) -> dict[str, Any]:
    people = [(NAMES[(number + i) % 6], CITIES[(number + i) % 6], 1900 + 7 * i + number) for i in range(6)]
    facts = " ".join(f"{name} worked in {city} in {year}." for name, city, year in people)
    prompt = f"{facts}\n\nThe same facts as JSON, a list with name, city and year of each:\n\n"
    schema = {"type": "array", "items": PERSON, "minItems": 6, "maxItems": 12}
    return {"prompt": prompt, "temperature": 0, "guided_json": schema}


def chat(number: int) -> dict[str, Any]:
    topic = passage("docs/parts/scheduler.md", number, 600)
    turns = f"User: What does this mean?\n{topic}\nAssistant: It means that {topic[:300]}\n"
    return {"prompt": f"{turns}User: Say it again, please.\nAssistant: It means that", "temperature": 0}


def agent(number: int) -> dict[str, Any]:
    def call(step: int) -> str:
        arguments = {"path": f"/srv/data/part-{step}.csv", "encoding": "utf-8", "max_rows": 1000, "strict": True}
        return f"Call: {json.dumps({'name': 'read_table', 'arguments': arguments})}\nResult: {number + step} rows\n"

    return {"prompt": "".join(call(step) for step in range(4)) + "Call:", "temperature": 0}


def prose(number: int) -> dict[str, Any]:
    beginnings = ("The lighthouse keeper", "In the spring of that year", "My grandmother", "On the last train")
    return {"prompt": beginnings[number % 4], "temperature": 1.0, "seed": number}


def noise(number: int) -> dict[str, Any]:
    chooser = random.Random(number)
    return {"prompt": chooser.choices(range(1000, 40_000), k=200), "temperature": 2.0, "seed": number}


# Case → its request, and the least ratio that is the goal.
CASES: dict[str, tuple[Callable[[int], dict[str, Any]], float]] = {
    "edit": (edit, 3.0),
    "quote": (quote, 1.6),
    "extract": (extract, 1.5),
    "chat": (chat, 1.3),
    "agent": (agent, 1.3),
    "prose": (prose, 0.98),
    "noise": (noise, 0.98),
}


def decode(server: Trunkline, bodies: list[dict[str, Any]], max_tokens: int = OUTPUT_TOKENS) -> float:
    """Sends requests at the same time. Returns the mean seconds from first to last token."""
    requests = measure_all(server.base_url, [line(max_tokens, **body) for body in bodies])["requests"]
    return statistics.mean(request["e2el_ms"] - request["ttft_ms"] for request in requests) / 1e3


def requests(name: str, numbers: range) -> list[dict[str, Any]]:
    """Returns the bodies of a case with these numbers."""
    return [CASES[name][0](number) | {"ignore_eos": name != "extract"} for number in numbers]


def output(server: Trunkline, body: dict[str, Any]) -> str:
    answer = http.post(f"{server.base_url}/v1/completions", json=body | {"max_tokens": OUTPUT_TOKENS}, timeout=120)
    return str(answer.raise_for_status().json()["choices"][0]["text"])


def measure(server: Trunkline, name: str, num_streams: int, repeat: int) -> dict[str, Any]:
    """Returns the ratio of one case and what it comes from."""
    ratios: list[float] = []
    before = server.metrics()
    for turn in range(repeat):
        bodies = requests(name, range(turn * num_streams, (turn + 1) * num_streams))
        times = []
        # On, off, off, on: what changes steadily, or differs between the first run and the last, cancels out.
        for part, has_drafts in enumerate((True, False, False, True)):
            # Each part has a salt, so that it finds no drafts in the equal outputs of the others.
            salted = [
                body | {"speculation": has_drafts, "cache_salt": f"{name} {num_streams} {turn} {part}"}
                for body in bodies
            ]
            # The prompts are cached before, so that there is no prefill beside the decodes.
            decode(server, salted, max_tokens=2)
            times.append(decode(server, salted))
        ratios.append((times[1] + times[2]) / (times[0] + times[3]))
    after = server.metrics()
    (body,) = requests(name, range(1))
    texts = {output(server, body | {"speculation": has_drafts}) for has_drafts in (True, False)}
    assert len(texts) == 1, f"{name}: drafts changed the text"
    counts = [after[f"trunkline_{kind}_total"] - before[f"trunkline_{kind}_total"] for kind in KINDS]
    return {
        "case": name,
        "streams": num_streams,
        "ratio": round(statistics.median(ratios), 2),
        "ratios": sorted(round(ratio, 2) for ratio in ratios),
        "goal": CASES[name][1],
        "drafted": int(counts[0]),
        "accepted": int(counts[1]),
    }


KINDS = ("drafted_tokens", "accepted_draft_tokens")


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| case | streams | off / on | least, most | goal | drafted | right |", "|---|---|---|---|---|---|---|"]
    for row in rows:
        share = row["accepted"] / row["drafted"] if row["drafted"] else 0.0
        least, most = row["ratios"][0], row["ratios"][-1]
        lines.append(
            f"| {row['case']} | {row['streams']} | {row['ratio']:.2f} | {least:.2f}, {most:.2f} | {row['goal']} "
            f"| {row['drafted']} | {share:.0%} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,8")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--speculate", default="auto", help="of the server")
    parser.add_argument("--save", action="store_true", help="write benchmark/results/speculation.md")
    options = parser.parse_args()
    cases, all_streams = options.cases.split(","), list(map(int, options.streams.split(",")))
    rows = []
    with serving("--speculate", options.speculate) as server:
        # Steps of all sizes are measured before drafts are judged by their cost.
        decode(server, [prose(i) for i in range(8)], max_tokens=100)
        for num_streams, name in product(all_streams, cases):
            rows.append(measure(server, name, num_streams, options.repeat))
            print(rows[-1], file=sys.stderr)
    text = table(rows)
    print(text)
    if options.save:
        text = f'# Speculation\n\n`make bench NAME=speculation ARGS="--save"`\n\n{text}\n'
        (ROOT / "benchmark/results/speculation.md").write_text(text)


if __name__ == "__main__":
    main()
