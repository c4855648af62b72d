"""Measures swaps between models: `make bench NAME=models`.

python benchmark/models.py [--rounds 20] [--large GIGABYTES] [--kill-seconds 30]

The embedded model has two names, and memory is limited so that one of them fits, or both. Times are from the request to
the first token for a prompt of one token. `--large` adds a model of so many GB with random weights, which is written to
`target/` and deleted afterwards.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np

from load import line, measure, measure_all  # isort: skip  (finds the harness)
from fairness import ROOT
from harness import Trunkline, embedded_gguf, http, serving, wait_for

sys.path.insert(0, str(ROOT / "server"))
from trunkline_server.export.gguf_writer import Entry, write
from trunkline_server.weights.gguf import GgufFile
from trunkline_server.weights.tensor import ALL_FORMATS, stored_bytes

# The embedded model needs 0.2 GB with this KV pool.
POOL = ("--max-batch-total-tokens", "4096")
ONE_FITS, BOTH_FIT = "300MB", "2GB"
# A spare process is there two seconds after the last load.
SPARE_PAUSE_S, NO_SPARE_PAUSE_S = 4.0, 0.3
STREAM_TOKENS = 1500
WRITE_DEADLINE_S = 600.0
# What the large model needs beside its weights, without room for the embedded one.
LARGE_ROOM_MB = 500
# The shape of a Llama model, of which the number of layers gives the size.
HIDDEN, INNER, HEADS, KV_HEADS = 4096, 14336, 32, 8
# The binary16 numbers of blocks with random bytes: their places, and a value with which weights are small. The first
# byte of MXFP4 is an exponent, and the upper nibbles of the last four words of IQ1_M are the scale.
HALVES = {"Q4_0": ((0,), 0.01), "IQ4_NL": ((0,), 3e-4), "IQ4_XS": ((0,), 1e-5), "MXFP4": ((), 0.0)}
HALVES |= {"Q8_0": ((0,), 3e-4)}
HALVES |= {"Q2_K": ((80, 82), 2e-3), "Q3_K": ((108,), 3e-4), "Q4_K": ((0, 2), 1e-4), "Q5_K": ((0, 2), 5e-5)}
HALVES |= {"Q6_K": ((208,), 2e-5), "TQ1_0": ((52,), 0.02), "TQ2_0": ((64,), 0.02), "IQ1_S": ((0,), 4e-3)}
HALVES |= {"IQ2_XXS": ((0,), 2e-4), "IQ2_XS": ((0,), 2e-4), "IQ2_S": ((0,), 2e-4), "IQ3_XXS": ((0,), 1e-4)}
HALVES |= {"IQ3_S": ((0,), 2e-4), "IQ1_M": ((), 4e-3)}


def ask(server: Trunkline, model: str) -> None:
    """Waits until the model has answered."""
    body = {"model": model, "prompt": [5], "max_tokens": 1}
    http.post(f"{server.base_url}/v1/completions", json=body, timeout=WRITE_DEADLINE_S).raise_for_status()


def ttfts(server: Trunkline, models: list[str], pause_s: float, num_rounds: int) -> list[float]:
    """Returns the seconds to the first token of requests to the models in turn, each some time after the last one."""
    for model in models:
        ask(server, model)
    before = server.log().count("unloading a model")
    prompts = [line(1, prompt=[5], model=model) | {"pause_s": pause_s} for model in models * num_rounds]
    # Its first requests, which are not measured, go to the model that is loaded.
    load = measure_all(server.base_url, prompts, "--model", models[-1], num_clients=1)
    times = [request["ttft_ms"] / 1e3 for request in load["requests"]]
    num_swaps = server.log().count("unloading a model") - before
    assert len(models) == 1 or num_swaps == len(times), f"{num_swaps} swaps for {len(times)} requests"
    return times


def row(what: str, times: list[float]) -> None:
    low, middle, high = (1e3 * quantile for quantile in quantiles(times, n=4))
    print(f"| {what} | {len(times)} | {low:.0f} | {middle:.0f} | {high:.0f} | {1e3 * max(times):.0f} |", flush=True)


def random_blocks(rng: np.random.Generator, stored_as: str, shape: tuple[int, int]) -> np.ndarray:
    """Returns the bytes of a weight of random blocks."""
    num_blocks = math.prod(shape) // ALL_FORMATS[stored_as].group_elements
    blocks = rng.integers(0, 256, (num_blocks, ALL_FORMATS[stored_as].group_bytes), dtype=np.uint8)
    places, scale = HALVES[stored_as]
    half = np.array([scale], "<f2")
    for place in places:
        blocks[:, place : place + 2] = half.view(np.uint8)
    if stored_as == "MXFP4":
        blocks[:, 0] = 119
    if stored_as == "IQ1_M":
        for word in range(4):
            upper = int(half.view("<u2")[0]) >> (4 * word) & 15
            blocks[:, 49 + 2 * word] = blocks[:, 49 + 2 * word] & 15 | upper << 4
    return blocks.reshape(-1)


def write_large(path: Path, num_gb: float, hidden: int = HIDDEN, inner: int = INNER, stored_as: str = "Q4_0") -> None:
    """Writes a Llama model with random weights and the embedded model's tokenizer.

    It has as many weights as take `num_gb` in Q4_0.
    """
    source = GgufFile(embedded_gguf())
    metadata = {key: source.stored_value(key) for key in source.metadata if not key.startswith("llama.")}
    (vocab_size, _) = source.tensors["token_embd.weight"].shape
    head = hidden // HEADS
    matrices = {"attn_q": (hidden, hidden), "attn_k": (KV_HEADS * head, hidden), "attn_v": (KV_HEADS * head, hidden)}
    matrices |= {"attn_output": (hidden, hidden), "ffn_gate": (inner, hidden), "ffn_up": (inner, hidden)}
    matrices |= {"ffn_down": (hidden, inner)}
    layer_bytes = sum(stored_bytes("Q4_0", shape) for shape in matrices.values())
    num_layers = round((num_gb * 1e9 - stored_bytes("Q4_0", (vocab_size, hidden))) / layer_bytes)
    numbers = {"block_count": num_layers, "embedding_length": hidden, "feed_forward_length": inner}
    numbers |= {"attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "context_length": 8192}
    numbers |= {"rope.dimension_count": head, "vocab_size": vocab_size}
    floats = {"attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10_000.0}
    metadata |= {f"llama.{key}": value for key, value in (numbers | floats).items()}
    rng = np.random.default_rng(0)

    def matrix(name: str, shape: tuple[int, int]) -> Entry:
        return Entry(name, stored_as, shape, partial(random_blocks, rng, stored_as, shape))

    def ones() -> bytes:
        return np.ones(hidden, "<f4").tobytes()

    entries = [matrix("token_embd.weight", (vocab_size, hidden))]
    entries.append(Entry("output_norm.weight", "F32", (hidden,), ones))
    for layer in range(num_layers):
        entries += [matrix(f"blk.{layer}.{name}.weight", shape) for name, shape in matrices.items()]
        entries += [Entry(f"blk.{layer}.{name}.weight", "F32", (hidden,), ones) for name in ("attn_norm", "ffn_norm")]
    write(path, metadata, entries)


class Killer:
    """Kills the shard of a model again and again, each time that it has answered."""

    def __init__(self, server: Trunkline, model: str) -> None:
        self.num_kills = 0
        self._server, self._model = server, model
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.is_set():
            answer = http.post(
                f"{self._server.base_url}/v1/completions",
                json={"model": self._model, "prompt": "x", "max_tokens": 1},
                timeout=60,
            )
            # A model that has crashed too often is refused for a while.
            if answer.status_code == 200:
                started = [line for line in self._server.log().splitlines() if "process=shard-m1 pid=" in line]
                os.kill(int(started[-1].rpartition("pid=")[2]), signal.SIGKILL)
                self.num_kills += 1
            self._ended.wait(0.2)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._ended.set()
        self._thread.join()


def inter_token(server: Trunkline, model: str, seconds: float) -> dict[str, Any]:
    """Measures streams one after the other, for so many seconds."""
    flags = ("--model", model, "--concurrency", "1", "--duration", f"{seconds}s")
    prompts = [{"prompt": "The sea is", "output_tokens": STREAM_TOKENS}]
    return measure(server.base_url, *flags, prompts=prompts)["figures"]


def measure_swaps(server: Trunkline, models: list[str], num_rounds: int) -> None:
    row("swap, a spare process is there", ttfts(server, models, SPARE_PAUSE_S, num_rounds))
    row("swap, without one", ttfts(server, models, NO_SPARE_PAUSE_S, num_rounds))
    row("in memory", ttfts(server, models[:1], NO_SPARE_PAUSE_S, num_rounds))


def measure_large(server: Trunkline, num_rounds: int) -> None:
    """Swaps the embedded model and the large one, and prints rows for the large one."""
    ask(server, "large")
    # The first load also writes the packed weights.
    wait_for(lambda: server.log().count("packed weights cached") >= 1, "the packed weights", WRITE_DEADLINE_S)
    for what, pause_s in (("a spare process is there", SPARE_PAUSE_S), ("without one", NO_SPARE_PAUSE_S)):
        times = ttfts(server, ["first", "large"], pause_s, num_rounds)
        row(f"swap to the large model, {what}", times[1::2])
    row("the large model in memory", ttfts(server, ["large"], NO_SPARE_PAUSE_S, num_rounds))


def measure_kills(server: Trunkline, seconds: float) -> None:
    for model in ("first", "second"):
        ask(server, model)
    print("\n| tokens of a stream | number | median, ms | p99 | longest |\n|---|--:|--:|--:|--:|")

    def print_row(what: str, figures: dict[str, Any]) -> None:
        shown = [f"{figures['itl_ms'][name]:.1f}" for name in ("median", "p99", "max")]
        print(f"| {what} | {figures['output_tokens']} | {' | '.join(shown)} |", flush=True)

    # Shards that start use a core, so a process that uses one shows what the machine has to do with it. Alone again at
    # the end, because a neighbour on the machine may come or go.
    print_row("alone", inter_token(server, "first", seconds))
    with Killer(server, "second") as killer:
        figures = inter_token(server, "first", seconds)
    print_row(f"beside {killer.num_kills} kills of the other model", figures)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        print_row("beside a process that uses a core", inter_token(server, "first", seconds))
        busy.kill()
    print_row("alone", inter_token(server, "first", seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="swaps to each model; 0 leaves them out")
    parser.add_argument("--large", type=float, help="GB of another model, which is swapped with the embedded one")
    parser.add_argument("--kill-seconds", type=float, default=30, help="how long streams run beside kills")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as name:
        folder = Path(name)
        first, second, large = (folder / f"{model}.gguf" for model in ("first", "second", "large"))
        for path in (first, second):
            path.symlink_to(embedded_gguf())
        flags = (*POOL, "--weights-cache", str(folder / "packed"))
        if args.rounds:
            print("| first token | requests | lower quartile, ms | median | upper quartile | longest |")
            print("|---|--:|--:|--:|--:|--:|")
            with serving(str(second), "--models-memory", ONE_FITS, *flags, model=str(first)) as server:
                measure_swaps(server, ["first", "second"], args.rounds)
        if args.rounds and args.large:
            write_large(large, args.large)
            print(f"large: {large.stat().st_size / 1e9:.2f} GB", file=sys.stderr)
            limit = f"{round(1000 * args.large) + LARGE_ROOM_MB}MB"
            with serving(str(large), "--models-memory", limit, *flags, model=str(first)) as server:
                measure_large(server, args.rounds)
        # Each model has a core of its own.
        with serving(str(second), "--models-memory", BOTH_FIT, *flags, "--threads", "1", model=str(first)) as server:
            measure_kills(server, args.kill_seconds)


if __name__ == "__main__":
    main()
