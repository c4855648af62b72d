"""Measures a model that exceeds its memory: `make bench NAME=weights_memory`.

python benchmark/weights_memory.py [--gigabytes 0.75] [--share 0.25] [--streams 1,4,16,64] [--folder DIR]

Serves a Llama model with random 4-bit weights, once with `--weights-memory` at a share of them and once with all in
memory. A step reads what exceeds the share, so the disk allows `bandwidth / (weights - memory)` steps a
second. The bandwidth is measured with direct reads of the same file just before and after. Prints the steps a second
as a part of that, tokens a second, the shard's largest memory, and how much of the file is in the page cache. The
model is written to `--folder`, where a later run finds it, or to a folder that is deleted afterwards.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from load import line, measure_all  # isort: skip  (finds the harness)
from fairness import ROOT
from harness import Trunkline, peak_bytes, serving, wait_for
from models import write_large

# A layer has 23 MiB, and its largest product 12.
HIDDEN, INNER = 2048, 5632
PROMPT, OUTPUT = 16, 24
LONG_PROMPT = 2048
TOKEN_IDS = range(1_000, 40_000)
READ_BYTES = 2 << 20
FLAGS = ("--max-batch-total-tokens", "16384", "--log-format", "text")
WRITE_DEADLINE_S = 600.0


def disk_bytes_per_second(path: Path) -> float:
    """Reads a file once past the page cache."""
    buffer = mmap.mmap(-1, READ_BYTES)
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        began, total = time.monotonic(), 0
        while count := os.preadv(file, [buffer], total):
            total += count
            if count < READ_BYTES:
                break
        return total / (time.monotonic() - began)
    finally:
        os.close(file)


def cached_bytes(path: Path) -> int:
    """Returns how much of a file is in the page cache."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as pages:
        anchor = (ctypes.c_char * len(pages)).from_buffer(pages)
        marks = (ctypes.c_ubyte * -(-len(pages) // mmap.PAGESIZE))()
        ctypes.CDLL(None).mincore(ctypes.byref(anchor), ctypes.c_size_t(len(pages)), marks)
        del anchor
        return sum(mark & 1 for mark in marks) * mmap.PAGESIZE


def tokens_per_second(server: Trunkline, num_streams: int, rng: random.Random) -> float:
    """Returns the tokens a second of streams side by side, by the time that each needs for a token."""
    prompts = [line(OUTPUT, prompt=rng.choices(TOKEN_IDS, k=PROMPT)) for _ in range(num_streams)]
    return sum(1e3 / request["tpot_ms"] for request in measure_all(server.base_url, prompts)["requests"])


def prefill_seconds(server: Trunkline, rng: random.Random) -> float:
    prompts = [line(1, prompt=rng.choices(TOKEN_IDS, k=LONG_PROMPT)) for _ in range(3)]
    requests = measure_all(server.base_url, prompts, num_clients=1)["requests"]
    return median(request["ttft_ms"] / 1e3 for request in requests)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.75, help="size of the model")
    parser.add_argument("--share", type=float, default=0.25, help="part of its weights that memory may hold")
    parser.add_argument("--streams", default="1,4,16,64")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    streams = [int(number) for number in args.streams.split(",")]
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as name:
        folder = Path(name) if args.folder is None else args.folder
        folder.mkdir(parents=True, exist_ok=True)
        measure(folder, args, streams)


def measure(folder: Path, args: argparse.Namespace, streams: list[int]) -> None:
    model, packed = folder / f"{args.gigabytes:g}.gguf", folder / "packed"
    if not model.exists():
        write_large(model, args.gigabytes, HIDDEN, INNER)
    flags = (*FLAGS, "--weights-cache", str(packed))
    memory = int(model.stat().st_size * args.share)
    with serving(*flags, "--weights-memory", str(memory), model=str(model)) as server:
        # The first start packs the weights into the file, from which later ones read.
        wait_for(lambda: any(packed.glob("*.weights")), "the file of packed weights", WRITE_DEADLINE_S)
        (file,) = packed.glob("*.weights")
        overflow = file.stat().st_size - memory
        speeds = [disk_bytes_per_second(file)]
        rng = random.Random(1)
        rates = {number: tokens_per_second(server, number, rng) for number in streams}
        speeds.append(disk_bytes_per_second(file))
        prefill = prefill_seconds(server, rng)
        peak, cached = peak_bytes(server.shard_pid()), cached_bytes(file)
        told = re.search(r"weights exceed.*", server.log())
    with serving(*flags, model=str(model)) as server:
        rng = random.Random(1)
        whole = {number: tokens_per_second(server, number, rng) for number in streams}
        whole_prefill = prefill_seconds(server, rng)
    allowed = sum(speeds) / len(speeds) / overflow
    print(f"weights {model.stat().st_size >> 20} MiB, of which {memory >> 20} MiB in memory, {os.cpu_count()} cores\n")
    print("| streams | all in memory, tokens/s | streamed, tokens/s | steps/s | of what the disk allows |")
    print("|--:|--:|--:|--:|--:|")
    for number, rate in rates.items():
        steps = rate / number
        print(f"| {number} | {whole[number]:.2f} | {rate:.2f} | {steps:.2f} | {steps / allowed:.0%} |")
    print(f"\nprefill of {LONG_PROMPT} tokens: {prefill:.2f} s, all in memory {whole_prefill:.2f} s")
    print(f"disk: {speeds[0] / 2**20:.0f} MiB/s before, {speeds[-1] / 2**20:.0f} MiB/s after")
    print(f"the shard's largest memory: {peak >> 20} MiB; of the file in the page cache: {cached >> 20} MiB")
    print(told.group() if told else "the log does not tell the speed", file=sys.stderr)


if __name__ == "__main__":
    main()
