"""Whether one tenant can tell by time what another has cached: time to first token of three classes of prompts.

python benchmark/isolation.py [--trials 200] [--prompt-tokens 128] [--seed 1] [--output benchmark/results]

own: the asking tenant has sent the prompt before. foreign: another tenant has. cold: nobody has; the other tenant sent
another prompt of the same length, so that everything else is alike. Trials of the classes alternate at random, one
request at a time. AUC is the chance that a request of the one class takes longer than one of cold (Mann and Whitney
1947), its interval DeLong's (1988): 0.5 means that no threshold does better than a coin, 0 or 1 that one look is
enough.

Ends with 1 if foreign can be told from cold, or if own cannot (then the measurement sees nothing).
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import Trunkline  # noqa: E402

CLASSES = ("own", "foreign", "cold")
KEYS = {"asking": "sk-asking-0123456789abcdef", "other": "sk-other-0123456789abcdef"}
# Ids of ordinary tokens of the embedded model.
FIRST_TOKEN, LAST_TOKEN = 1_000, 40_000
NUM_WARM_UPS = 20
# Two-sided quantiles of the normal distribution.
Z_95, Z_999 = 1.960, 3.291
# One look is enough.
CLEARLY_TOLD = 0.95


def auc(longer: list[float], shorter: list[float], z: float) -> tuple[float, float, float]:
    """Chance that one of `longer` takes longer than one of `shorter`, ties half, and the ends of its interval."""

    def wins(a: float, b: float) -> float:
        return 1.0 if a > b else 0.5 if a == b else 0.0

    of_longer = [statistics.fmean(wins(a, b) for b in shorter) for a in longer]
    of_shorter = [statistics.fmean(wins(a, b) for a in longer) for b in shorter]
    middle = statistics.fmean(of_longer)
    variance = statistics.variance(of_longer) / len(longer) + statistics.variance(of_shorter) / len(shorter)
    half = z * math.sqrt(variance)
    return middle, middle - half, middle + half


class Client:
    """One connection of one tenant."""

    def __init__(self, port: int, key: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port)
        self.headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}

    def ttft_s(self, prompt: list[int]) -> float:
        """Seconds from sending the request to its first event with text; the rest of the answer is read away."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True, "stream": True})
        begin = time.perf_counter()
        self.connection.request("POST", "/v1/completions", body, self.headers)
        answer = self.connection.getresponse()
        answer.read(1)
        seconds = time.perf_counter() - begin
        rest = answer.read()
        if answer.status != 200:
            sys.exit(f"error: status {answer.status}: {rest.decode(errors='replace')}")
        return seconds


def measure(port: int, trials: int, prompt_tokens: int, seed: int) -> dict[str, list[float]]:
    """Seconds to the first token, by class, in the order of measurement."""
    dice = random.Random(seed)
    clients = {name: Client(port, key) for name, key in KEYS.items()}

    def fresh() -> list[int]:
        return [dice.randrange(FIRST_TOKEN, LAST_TOKEN) for _ in range(prompt_tokens)]

    order = [name for name in CLASSES for _ in range(trials)]
    dice.shuffle(order)
    times: dict[str, list[float]] = {name: [] for name in CLASSES}
    for index, name in enumerate([*dice.choices(CLASSES, k=NUM_WARM_UPS), *order]):
        asked = fresh()
        # Before each measurement one prompt is computed, whatever the class.
        clients["asking" if name == "own" else "other"].ttft_s(fresh() if name == "cold" else asked)
        seconds = clients["asking"].ttft_s(asked)
        if index >= NUM_WARM_UPS:
            times[name].append(seconds)
    return times


def summary(times: dict[str, list[float]]) -> dict[str, object]:
    """The figures of the report."""
    medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    pairs = {}
    for name in ("foreign", "own"):
        middle, low, high = auc(times[name], times["cold"], Z_95)
        pairs[f"{name} against cold"] = {"auc": middle, "low": low, "high": high}
    return {"median_ms": medians, "auc": pairs}


def report(figures: dict[str, object], times: dict[str, list[float]], setup: str) -> str:
    """The report as Markdown."""
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
    verdict = "AUC is the chance that a request of the first class takes longer than a cold one; 0.5 tells nothing."
    return "\n".join([*lines, "", verdict, ""])


def main() -> int:
    """Starts a server, measures, writes the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, help="of each class")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results")
    args = parser.parse_args()
    if args.trials < 2 or args.prompt_tokens < 2:
        parser.error("at least 2 trials and 2 tokens are needed")
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys.toml"
        keys.touch(mode=0o600)
        keys.write_text("".join(f'[tenants.{name}]\nkeys = "{key}"\n' for name, key in KEYS.items()))
        server = Trunkline("--api-keys", str(keys))
        try:
            server.wait_ready()
            times = measure(server.port, args.trials, args.prompt_tokens, args.seed)
        finally:
            server.stop()
    figures = summary(times)
    setup = (
        f"`make bench NAME=isolation`, seed {args.seed}: {args.trials} requests of each class, alternating at random, one "
        f"at a time, prompts of {args.prompt_tokens} random tokens, {os.cpu_count()} CPUs ({platform.machine()})."
    )
    text = report(figures, times, setup)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "isolation.md").write_text(text)
    (args.output / "isolation.json").write_text(json.dumps({"setup": setup, **figures}, indent=1) + "\n")
    print(text)
    _, low, high = auc(times["foreign"], times["cold"], Z_999)
    if not low <= 0.5 <= high:
        print(f"error: foreign prompts can be told from cold ones (99.9 % interval {low:.3f} to {high:.3f})")
        return 1
    _, low, high = auc(times["cold"], times["own"], Z_95)
    if low < CLEARLY_TOLD:
        print(f"error: own prompts cannot be told from cold ones ({low:.3f} to {high:.3f}): nothing is measured")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
