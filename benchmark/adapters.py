"""Measures what adapters cost: `make bench NAME=adapters`.

python benchmark/adapters.py [--rounds 3] [--rank 16] [--slots 32] [--adapters 1,25,200,2000] [--folder DIR]

Made adapters change all projections of the embedded model. One server answers without and with them in turn, so that a
neighbour on the machine slows both; figures are medians of ratios of a round. In `--folder`, 32 files of random numbers
in bfloat16 stand for all adapters, which differ in their scale. A later run takes the folder as it is.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from load import line, measure_all  # isort: skip  (finds the harness)
from fairness import ROOT, metric, percentile
from harness import EMBEDDED, Trunkline, serving
from made_adapters import write_adapter, write_config

NUM_FILES = 32
STREAM_TOKENS = 96
STREAM_PROMPT = 32
# Requests of the spread.
SPREAD_REQUESTS, SPREAD_CLIENTS, SPREAD_PROMPT, SPREAD_TOKENS = 192, 16, 64, 24
TOKEN_IDS = range(1_000, 40_000)

Model = str | None


def name_of(index: int) -> str:
    return f"made-{index:04d}"


def make_adapters(folder: Path, num_adapters: int, rank: int) -> None:
    """Writes adapters. Those with the same tensors are links to one file."""
    for index in range(num_adapters):
        own, tensors = folder / name_of(index), folder / name_of(index % NUM_FILES) / "adapter_model.safetensors"
        if (own / "adapter_config.json").exists():
            continue
        if index < NUM_FILES:
            write_adapter(own, index, rank=rank)
        else:
            own.mkdir(parents=True, exist_ok=True)
            (own / tensors.name).hardlink_to(tensors)
        write_config(own, rank, rank * (1 + index / 10_000))


def ask(model: Model, num_prompt: int, max_tokens: int, rng: random.Random) -> dict[str, Any]:
    """Returns a request with a random prompt."""
    prompt = rng.choices(TOKEN_IDS, k=num_prompt)
    return line(max_tokens, prompt=prompt, **({} if model is None else {"model": model}))


def decode_rate(server: Trunkline, models: list[Model], rng: random.Random) -> float:
    """Returns the tokens a second of streams side by side, by the time that each needs for a token."""
    load = measure_all(server.base_url, [ask(model, STREAM_PROMPT, STREAM_TOKENS, rng) for model in models])
    return sum(1e3 / request["tpot_ms"] for request in load["requests"])


def spread(server: Trunkline, num_adapters: int, rng: random.Random) -> tuple[float, float]:
    """Returns the 95th percentile of the time to first token in seconds, and requests a second."""
    models = [name_of(rng.randrange(num_adapters)) for _ in range(SPREAD_REQUESTS)]
    prompts = [ask(model, SPREAD_PROMPT, SPREAD_TOKENS, rng) for model in models]
    load = measure_all(server.base_url, prompts, num_clients=SPREAD_CLIENTS)
    firsts = [request["ttft_ms"] / 1e3 for request in load["requests"]]
    return percentile(firsts, 95), load["figures"]["requests_per_s"]


def load_s(server: Trunkline, num_known: int, rng: random.Random) -> float:
    """Returns how much later the first token comes if its adapter must be opened and loaded, in seconds: the median."""
    twice = [name_of(index) for index in range(num_known - 5, num_known) for _ in range(2)]
    prompts = [ask(model, SPREAD_PROMPT, 1, rng) for model in twice]
    requests = measure_all(server.base_url, prompts, num_clients=1)["requests"]
    firsts = [request["ttft_ms"] / 1e3 for request in requests]
    return median(first - second for first, second in zip(firsts[::2], firsts[1::2], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--slots", type=int, default=32)
    parser.add_argument("--adapters", default="1,25,200,2000", help="over how many adapters requests are spread")
    parser.add_argument("--folder", type=Path, default=ROOT / "target" / "made-adapters")
    args = parser.parse_args()
    counts = [int(count) for count in args.adapters.split(",")]
    make_adapters(args.folder, max(*counts, NUM_FILES), args.rank)
    flags = ("--lora-folder", str(args.folder), "--max-loras", str(args.slots), "--speculate", "off")
    rng = random.Random(0)
    with serving(*flags, "--max-concurrent-requests", "64", model=EMBEDDED) as server:
        print(f"adapters of rank {args.rank} on all projections, {args.slots} slots, {args.rounds} rounds\n")
        print("| streams | tokens/s | ratio |\n|---|--:|--:|")
        one: Callable[[int], list[Model]] = lambda count: [name_of(0)] * count  # noqa: E731
        many: Callable[[int], list[Model]] = lambda count: [name_of(index) for index in range(count)]  # noqa: E731
        none: Callable[[int], list[Model]] = lambda count: [None] * count  # noqa: E731
        half: Callable[[int], list[Model]] = lambda count: [None, name_of(0)] * (count // 2)  # noqa: E731
        for count, what, models, base in (
            (8, "8 of one adapter, beside 8 of none", one, none),
            (32, "32 of one adapter, beside 32 of none", one, none),
            (32, "32 of 32 adapters, beside 32 of one", many, one),
            (32, "16 of none and 16 of one adapter, beside 32 of none", half, none),
        ):
            decode_rate(server, models(count), rng)  # loads the adapters
            sides = (base(count), models(count))
            rates = [[decode_rate(server, side, rng) for side in sides] for _ in range(args.rounds)]
            rate = median(rate for _, rate in rates)
            print(f"| {what} | {rate:.0f} | {median(after / before for before, after in rates):.2f} |", flush=True)
        print(f"\nOpening and loading an adapter: {1e3 * load_s(server, max(counts), rng):.0f} ms\n")
        print_spread(server, counts, args.rounds, rng)


def print_spread(server: Trunkline, counts: list[int], num_rounds: int, rng: random.Random) -> None:
    """Prints a row for each number of adapters. They take turns; a ratio is that to the first in the same round."""
    results, loads = dict[int, list[tuple[float, float]]](), dict[int, float]()
    for _ in range(num_rounds):
        for count in counts:
            before = metric(server.port, "trunkline_adapter_loads_total")
            results.setdefault(count, []).append(spread(server, count, rng))
            loads[count] = metric(server.port, "trunkline_adapter_loads_total") - before
    print("| adapters | p95 of the first token, ms | requests/s | ratio | loads |\n|--:|--:|--:|--:|--:|")
    for count in counts:
        first, rate = (median(column) for column in zip(*results[count], strict=True))
        ratio = median(own / base for (_, own), (_, base) in zip(results[count], results[counts[0]], strict=True))
        print(f"| {count} | {1e3 * first:.0f} | {rate:.2f} | {ratio:.2f} | {loads[count]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
