"""Compares GGUF files of one model with llama.cpp's server: `make bench NAME=low_bits ARGS=FOLDER`.

python benchmark/low_bits.py FOLDER [--make FORMATS] [--rounds 2] [--threads N]

For each file of the folder, both servers run by turns, `--rounds` times each, with one stream. Prints the size of the
file, the memory of each server after its first token, and the best rates of decoding and prefill with their ratios.
`--make` first writes a Llama model of 280 million random weights in each of the formats (such as `IQ2_XXS,Q3_K`), so
that nothing has to be downloaded; its answers mean nothing.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import load  # isort: skip  (finds the harness)
from harness import TRUNKLINE, embedded_gguf
from models import write_large
from peers import llamacpp
from peers.peer import Peer, Setting, started
from peers.words import single_token_words
from peers.workload import Vocabulary

HIDDEN, INNER, SIZE_GB = 2048, 5632, 0.16
PROMPT, OUTPUT, REPEATS = 512, 64, 3
# Keys and values of the stream, for which both servers reserve memory.
CONTEXT = 2048
LIMIT_S = 600.0


class LlamaCpp(Peer):
    def install(self, setting: Setting) -> None:
        llamacpp.install()

    def command(self, setting: Setting, port: int) -> list[str | Path]:
        threads = ["--threads", str(setting.threads), "--threads-batch", str(setting.threads)]
        sizes = ["--parallel", "1", "--ctx-size", str(CONTEXT), "--cache-ram", "0"]
        server = llamacpp.BUILD / "bin/llama-server"
        return [server, "--model", setting.gguf, "--host", "127.0.0.1", "--port", str(port), *threads, *sizes]


class Trunkline(Peer):
    def install(self, setting: Setting) -> None:
        pass

    def command(self, setting: Setting, port: int) -> list[str | Path]:
        flags = ["--threads", str(setting.threads), "--max-batch-total-tokens", str(CONTEXT), "--speculate", "off"]
        return [TRUNKLINE, "serve", setting.gguf, "--port", str(port), *flags]


PEERS = (Trunkline("trunkline", "trunkline", "", None), LlamaCpp("llamacpp", "llama.cpp", "", None))


@dataclass
class Best:
    memory: int = 0
    decode: float = 0.0
    prefill: float = 0.0


def measure(peer: Peer, setting: Setting, vocabulary: Vocabulary, best: Best) -> None:
    with started(peer, setting, vocabulary.prompt(4)) as endpoint:
        best.memory = endpoint.child.memory_bytes()
        for _ in range(REPEATS):
            (stream,) = endpoint.batch([vocabulary.prompt(PROMPT)], OUTPUT, LIMIT_S)
            best.prefill = max(best.prefill, PROMPT / stream.ttft_s)
            best.decode = max(best.decode, 1 / stream.tpot_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of GGUF files with the tokenizer of one model")
    parser.add_argument("--make", default="", help="formats of the models to write first, separated by commas")
    parser.add_argument("--rounds", type=int, default=2, help="times that each server is started for a file")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads of each server")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in filter(None, args.make.split(",")):
        path = args.folder / f"{name}.gguf"
        if not path.exists():
            write_large(path, SIZE_GB, HIDDEN, INNER, name)
    vocabulary = Vocabulary(single_token_words(embedded_gguf()), random.getrandbits(32))
    print("| file | MiB | Trunkline, MiB | llama.cpp | decode, tokens/s | llama.cpp | × | prefill | llama.cpp | × |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|", flush=True)
    for path in sorted(args.folder.glob("*.gguf"), key=lambda path: path.stat().st_size):
        setting = Setting(path, args.threads, LIMIT_S)
        best: dict[str, Best] = defaultdict(Best)
        for _ in range(args.rounds):
            for peer in PEERS:
                peer.install(setting)
                measure(peer, setting, vocabulary, best[peer.name])
        ours, theirs = (best[peer.name] for peer in PEERS)
        cells = [path.stem, f"{path.stat().st_size / 2**20:.0f}", f"{ours.memory / 2**20:.0f}"]
        cells.append(f"{theirs.memory / 2**20:.0f}")
        for a, b in ((ours.decode, theirs.decode), (ours.prefill, theirs.prefill)):
            cells += [f"{a:.1f}", f"{b:.1f}", f"{a / b:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    try:
        main()
    except load.LoadError as failure:
        sys.exit(f"error: {failure}")
