"""Compares KV dtypes by capacity, perplexity, greedy agreement and decode speed, on the embedded model.

python benchmark/kv_dtypes.py [--dtypes bf16,int8,int4] [--windows 10] [--output FOLDER]

Calls the CPU backend without a server and compares each dtype with the first. Writes kv-dtypes.md.
"""

import argparse
import math
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "server"), str(ROOT / "integration-tests")]

TEXT = ROOT / "integration-tests/texts/long/alice.txt"
# Windows are scored separately, and a window's first token has no score, so 10 windows have 10,230 scored tokens.
WINDOW_TOKENS = 1024
NUM_PROMPTS, PROMPT_TOKENS, OUTPUT_TOKENS = 16, 64, 128
CONTEXT_TOKENS = 6000
DECODE_ROUNDS, STEPS_PER_ROUND = 6, 8
POOL_TOKENS = 8192


def tokenize(path):
    import transformers
    from harness import embedded_gguf

    tokenizer = transformers.AutoTokenizer.from_pretrained(embedded_gguf().parent, gguf_file=embedded_gguf().name)
    return tokenizer.encode(path.read_text(), verbose=False)


def load(dtype):
    from harness import embedded_gguf
    from trunkline_server.backends.registry import BackendOptions, build
    from trunkline_server.weights.checkpoint import open_checkpoint

    began = time.monotonic()
    options = BackendOptions(max_batch_total_tokens=POOL_TOKENS, kv_cache_dtype=dtype)
    backend = build("cpu", open_checkpoint(embedded_gguf()), options)
    return backend, time.monotonic() - began


def score_window(backend, window):
    """Returns the negative logprob of each token except the first, and the likeliest token at its position."""
    logits = backend.score(window)[:-1]
    top = logits.max(axis=-1)
    # Row by row, because the exponentials of all 8,192 rows of logits would take another 1.6 GB.
    sums = np.array([np.exp(row - most).sum(dtype=np.float64) for row, most in zip(logits, top, strict=True)])
    return np.log(sums) + top - logits[np.arange(len(logits)), window[1:]], logits.argmax(axis=-1)


def scores(backend, token_ids, num_windows):
    """Returns the results of `score_window` for consecutive windows."""
    starts = range(0, num_windows * WINDOW_TOKENS, WINDOW_TOKENS)
    windows = [score_window(backend, token_ids[first : first + WINDOW_TOKENS]) for first in starts]
    nlls, likeliest = zip(*windows, strict=True)
    return np.concatenate(nlls), np.concatenate(likeliest)


class Run:
    """Sequences on a backend, each with its own blocks."""

    def __init__(self, backend, prompts, room):
        from trunkline_server.backends.interface import SamplingParams

        self.backend = backend
        self.known = [len(prompt) for prompt in prompts]
        block_size, next_block = backend.info.block_size, 0
        self.tokens = []
        for sequence_id, prompt in enumerate(prompts):
            backend.start(sequence_id, prompt, len(prompt), SamplingParams())
            needed = -(-(len(prompt) + room) // block_size)
            blocks = list(range(next_block, next_block + needed))
            next_block += needed
            step_tokens = backend.info.max_step_tokens
            for first in range(0, len(prompt), step_tokens):
                count = min(step_tokens, len(prompt) - first)
                outcomes = self.step([(sequence_id, first, count, blocks if first == 0 else [])], len(prompt))
            self.tokens.append([outcomes[0].token_id])

    def step(self, chunks, end):
        from trunkline_server._proto.shard_pb2 import Chunk

        fields = ("sequence_id", "first_position", "num_tokens", "new_block_ids")
        parts = [dict(zip(fields, chunk, strict=True)) for chunk in chunks]
        return self.backend.step(
            [Chunk(**part, sample=part["first_position"] + part["num_tokens"] >= end) for part in parts]
        )

    def decode(self):
        chunks = [(sequence_id, position, 1, []) for sequence_id, position in enumerate(self.known)]
        for outcome in self.step(chunks, 0):
            self.tokens[outcome.sequence_id].append(outcome.token_id)
        self.known = [position + 1 for position in self.known]

    def end(self):
        self.backend.reset()


def greedy(backend, token_ids):
    stride = len(token_ids) // (NUM_PROMPTS + 1)
    run = Run(backend, [token_ids[n * stride :][:PROMPT_TOKENS] for n in range(NUM_PROMPTS)], OUTPUT_TOKENS)
    for _ in range(OUTPUT_TOKENS - 1):
        run.decode()
    run.end()
    return np.array(run.tokens)


def decode_seconds(backends, token_ids):
    """Returns the seconds of each backend's fastest step with one sequence at CONTEXT_TOKENS. Backends take turns."""
    room = DECODE_ROUNDS * STEPS_PER_ROUND
    runs = [Run(backend, [token_ids[:CONTEXT_TOKENS]], room) for backend in backends]
    best = [math.inf] * len(runs)
    for _ in range(DECODE_ROUNDS):
        for index, run in enumerate(runs):
            for _ in range(STEPS_PER_ROUND - 1):
                began = time.perf_counter()
                run.decode()
                best[index] = min(best[index], time.perf_counter() - began)
    for run in runs:
        run.end()
    return best


def measure(dtypes, num_windows):
    token_ids = tokenize(TEXT)
    assert len(token_ids) >= num_windows * WINDOW_TOKENS
    loaded = [load(dtype) for dtype in dtypes]
    backends = [backend for backend, _ in loaded]
    seconds = decode_seconds(backends, token_ids)
    base, rows = None, []
    for dtype, (backend, load_seconds), step_seconds in zip(dtypes, loaded, seconds, strict=True):
        nlls, likeliest = scores(backend, token_ids, num_windows)
        output = greedy(backend, token_ids)
        base = base or (backend.info.bytes_per_block, nlls, likeliest, output)
        differs = output != base[3]
        first = np.where(differs.any(axis=1), differs.argmax(axis=1), OUTPUT_TOKENS)
        rows.append(
            {
                "dtype": dtype,
                "bytes_per_token": backend.info.bytes_per_block / backend.info.block_size,
                "capacity": base[0] / backend.info.bytes_per_block,
                "perplexity": math.exp(nlls.mean()),
                "perplexity_change": math.exp(nlls.mean() - base[1].mean()) - 1,
                "mean_abs_logprob_difference": float(np.abs(nlls - base[1]).mean()),
                "same_likeliest": float((likeliest == base[2]).mean()),
                "greedy_same_tokens": float(1 - differs.mean()),
                "greedy_tokens_to_first_difference": {"mean": float(first.mean()), "median": float(np.median(first))},
                "decode_step_ms": step_seconds * 1e3,
                "load_seconds": load_seconds,
                "scored_tokens": len(nlls),
            }
        )
        print(rows[-1], file=sys.stderr)
    return rows


def table(rows):
    head = (
        "| K and V | bytes per token | capacity | perplexity | change | mean \\|Δ logprob\\| | same likeliest token "
        "| greedy: same tokens | tokens to the first difference, mean (median) | decode step at 6,000 |"
    )
    lines = [head, "|" + "---|" * 10]
    for row in rows:
        first = row["greedy_tokens_to_first_difference"]
        lines.append(
            f"| {row['dtype']} | {row['bytes_per_token']:,.0f} | {row['capacity']:.2f} | {row['perplexity']:.4f} "
            f"| {row['perplexity_change']:+.2%} | {row['mean_abs_logprob_difference']:.4f} "
            f"| {row['same_likeliest']:.1%} | {row['greedy_same_tokens']:.1%} "
            f"| {first['mean']:.0f} ({first['median']:.0f}) of {OUTPUT_TOKENS} | {row['decode_step_ms']:.1f} ms |"
        )
    return "\n".join(lines)


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="bf16,int8,int4")
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results")
    arguments = parser.parse_args()
    rows = measure(arguments.dtypes.split(","), arguments.windows)
    text = (
        "# K and V by dtype\n\n`make bench NAME=kv-dtypes`: the embedded model on the CPU backend, "
        f"{rows[0]['scored_tokens']:,} tokens of prose in windows of {WINDOW_TOKENS:,}, {NUM_PROMPTS} prompts of "
        f"{PROMPT_TOKENS} tokens with {OUTPUT_TOKENS} greedy tokens each, and the fastest decode step of one sequence, "
        f"measured in turns. Each dtype is compared with {rows[0]['dtype']}.\n\n{table(rows)}\n"
    )
    write(arguments.output / "kv-dtypes.md", text)


if __name__ == "__main__":
    main()
