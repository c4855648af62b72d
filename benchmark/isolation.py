"""Measures whether timing tells a tenant what another tenant has cached: `make bench NAME=isolation`.

python benchmark/isolation.py [--trials 200] [--prompt-tokens 128] [--seed 1] [--output benchmark/results]

Compares the time to first token of three classes of prompts, in random order, one request at a time:

- own: the asking tenant has sent the prompt before.
- foreign: another tenant has sent it before.
- cold: nobody has. The other tenant has sent another prompt of the same length, so that all else is equal.

The AUC is the probability that a request of a class takes longer than a cold one (Mann and Whitney 1947), with DeLong's
interval (1988). At 0.5 no threshold does better than chance; at 0 or 1 a single request suffices.

Exits with 1 if foreign prompts can be told from cold ones, or if own prompts cannot, which means that the measurement
is not sensitive enough.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import random
import statistics
import sys
from pathlib import Path

from tenant_client import ROOT, Client, random_prompt, serving_tenants

CLASSES = ("own", "foreign", "cold")
TENANTS = ("asking", "other")
NUM_WARM_UPS = 20
# Two-sided quantiles of the normal distribution.
Z_95, Z_999 = 1.960, 3.291
# The least AUC at which a class counts as distinguishable.
MIN_DISTINCT_AUC = 0.95


def auc(longer: list[float], shorter: list[float], z: float) -> tuple[float, float, float]:
    """Returns the probability that one of `longer` exceeds one of `shorter`, and its interval. Ties count half."""

    def wins(a: float, b: float) -> float:
        return 1.0 if a > b else 0.5 if a == b else 0.0

    of_longer = [statistics.fmean(wins(a, b) for b in shorter) for a in longer]
    of_shorter = [statistics.fmean(wins(a, b) for a in longer) for b in shorter]
    middle = statistics.fmean(of_longer)
    variance = statistics.variance(of_longer) / len(longer) + statistics.variance(of_shorter) / len(shorter)
    half = z * math.sqrt(variance)
    return middle, middle - half, middle + half


def measure(port: int, trials: int, prompt_tokens: int, seed: int) -> dict[str, list[float]]:
    """Returns the seconds to the first token by class, in the order of measurement."""
    rng = random.Random(seed)
    clients = {name: Client(port, name) for name in TENANTS}

    order = [name for name in CLASSES for _ in range(trials)]
    rng.shuffle(order)
    times: dict[str, list[float]] = {name: [] for name in CLASSES}
    for index, name in enumerate([*rng.choices(CLASSES, k=NUM_WARM_UPS), *order]):
        prompt = random_prompt(rng, prompt_tokens)
        # Every class computes one prompt before each measurement.
        before = random_prompt(rng, prompt_tokens) if name == "cold" else prompt
        clients["asking" if name == "own" else "other"].ttft_s(before, 1)
        seconds = clients["asking"].ttft_s(prompt, 1)
        if index >= NUM_WARM_UPS:
            times[name].append(seconds)
    return times


def summary(times: dict[str, list[float]]) -> dict[str, object]:
    medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    pairs = {}
    for name in ("foreign", "own"):
        middle, low, high = auc(times[name], times["cold"], Z_95)
        pairs[f"{name} against cold"] = {"auc": middle, "low": low, "high": high}
    return {"median_ms": medians, "auc": pairs}


def report(figures: dict[str, object], times: dict[str, list[float]], setup: str) -> str:
    lines = ["# Isolation of tenants by time", "", setup, "", "| class | trials | median TTFT, ms | quartiles, ms |"]
    lines.append("|---|---|---|---|")
    for name, values in times.items():
        low, middle, high = (quartile * 1e3 for quartile in statistics.quantiles(values, n=4))
        lines.append(f"| {name} | {len(values)} | {middle:.2f} | {low:.2f} to {high:.2f} |")
    lines += ["", "| classes | AUC | 95 % interval |", "|---|---|---|"]
    pairs = figures["auc"]
    assert isinstance(pairs, dict)
    for name, pair in pairs.items():
        lines.append(f"| {name} | {pair['auc']:.3f} | {pair['low']:.3f} to {pair['high']:.3f} |")
    verdict = "The AUC is the probability that a request of the class takes longer than a cold one; 0.5 is chance."
    return "\n".join([*lines, "", verdict, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="requests of each class")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results")
    args = parser.parse_args()
    if args.trials < 2 or args.prompt_tokens < 2:
        parser.error("`--trials` and `--prompt-tokens` must be at least 2")
    with serving_tenants(*TENANTS) as server:
        times = measure(server.port, args.trials, args.prompt_tokens, args.seed)
    figures = summary(times)
    setup = (
        f"`make bench NAME=isolation`, seed {args.seed}: {args.trials} requests of each class in random order, one "
        f"at a time, prompts of {args.prompt_tokens} random tokens, {os.cpu_count()} CPUs ({platform.machine()})."
    )
    text = report(figures, times, setup)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "isolation.md").write_text(text)
    print(text)
    _, low, high = auc(times["foreign"], times["cold"], Z_999)
    if not low <= 0.5 <= high:
        print(f"error: foreign prompts can be told from cold ones (99.9 % interval {low:.3f} to {high:.3f})")
        return 1
    _, low, high = auc(times["cold"], times["own"], Z_95)
    if low < MIN_DISTINCT_AUC:
        print(f"error: own prompts cannot be told from cold ones ({low:.3f} to {high:.3f}), so this run shows nothing")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
