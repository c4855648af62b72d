"""Fits the cost model of `make sim-fleet` to measured steps: `make bench NAME=step_cost ARGS=FILE`.

python benchmark/step_cost.py [FILE]

FILE is the log of a server that served with `--log-level trace --log-format json`. Without it, a server with the
embedded model runs completions of random prompts, first one at a time, then more. Prints the costs, their errors, and
the arguments for `make sim-fleet`. A step takes a time, one for each row (a position that it computes), and one for
each position that the rows of chunks and those of decodes read. The fit minimises the mean of |measured − fitted| /
fitted, so that half of the steps are quicker, and those that another process held up count little.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "integration-tests"))

from harness import serving  # noqa: E402

TERMS = ("step", "row", "context", "decode-context")
NUM_REQUESTS, CONCURRENCIES = 16, (1, 4, 16)
PROMPT_TOKENS, OUTPUT_TOKENS = (32, 4_000), 48
# Ids of ordinary tokens of the embedded model.
TOKEN_IDS = range(1_000, 40_000)
NUM_ITERATIONS = 50
# The least error that gives a step more weight, so that no step gets all.
LEAST_ERROR = 1e-3


def measured_log() -> str:
    """Serves random prompts, whose lengths are uniform on a logarithmic scale, and returns the server's log."""
    rng = random.Random(1)
    low, high = PROMPT_TOKENS
    # Threads that wait for each other suffer most from other processes.
    with serving("--threads", "1", "--log-level", "trace", "--log-format", "json") as server:
        for concurrency in CONCURRENCIES:
            lengths = [round(low * (high / low) ** rng.random()) for _ in range(NUM_REQUESTS)]
            prompts = [rng.choices(TOKEN_IDS, k=length) for length in lengths]
            with ThreadPoolExecutor(concurrency) as clients:
                list(clients.map(lambda p: server.complete(p, max_tokens=OUTPUT_TOKENS, ignore_eos=True), prompts))
        return server.log()


def steps(lines: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the terms of each step, and its microseconds."""
    planned: dict[tuple[int, int], list[int]] = {}
    terms, times = [], []
    for line in lines:
        if "step planned" in line:
            plan = json.loads(line)
            planned[plan["lane"], plan["step_id"]] = [1, plan["rows"], plan["context"], plan["decode_context"]]
        elif "step finished" in line:
            result = json.loads(line)
            work = planned.pop((result["lane"], result["step_id"]), None)
            if work is not None and work[1] > 0 and result["device_us"] > 0:
                terms.append(work)
                times.append(result["device_us"])
    return np.array(terms, float), np.array(times, float)


def fit(terms: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Returns costs that are not negative, by least squares with weights that lead to the least absolute error."""
    used = list(range(terms.shape[1]))
    while True:
        scale, weights = times, np.ones(len(times))
        for _ in range(NUM_ITERATIONS):
            scaled = terms[:, used] * (weights / scale)[:, None]
            norms = np.linalg.norm(scaled, axis=0)
            found = np.linalg.lstsq(scaled / norms, times * weights / scale, rcond=None)[0] / norms
            scale = np.maximum(terms[:, used] @ found, times.min())
            weights = 1 / np.sqrt(np.maximum(np.abs(times / scale - 1), LEAST_ERROR))
        if (found >= 0).all():
            break
        used.pop(int(found.argmin()))
    costs = np.zeros(terms.shape[1])
    costs[used] = found
    return costs


def main() -> None:
    text = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else measured_log()
    terms, times = steps(text.splitlines())
    if len(times) < len(TERMS):
        sys.exit("error: the log has too few steps; hint: serve with --log-level trace --log-format json")
    costs = fit(terms, times)
    errors = times / (terms @ costs) - 1
    print(f"{len(times)} steps of {times.min() / 1e3:.1f} to {times.max() / 1e3:.1f} ms\n")
    print("| rows of the step | steps | median time | median error | median of absolute errors | 90th percentile |")
    print("|---|--:|--:|--:|--:|--:|")
    rows = terms[:, 1]
    for least, most in ((1, 1), (2, 16), (17, 256), (257, None)):
        chosen = (rows >= least) & (rows <= (most or np.inf))
        if not chosen.any():
            continue
        error = errors[chosen]
        print(
            f"| {least} to {most or 'more'} | {chosen.sum()} | {np.median(times[chosen]) / 1e3:.2f} ms | "
            f"{np.median(error):+.1%} | {np.median(np.abs(error)):.1%} | {np.quantile(np.abs(error), 0.9):.1%} |"
        )
    print("\n" + " ".join(f"--{name}-us {cost:.4g}" for name, cost in zip(TERMS, costs, strict=True)))


if __name__ == "__main__":
    main()
