"""Compares KV dtypes by perplexity at each position, up to the full context of the embedded model.

python benchmark/kv_positions.py [--dtypes bf16,f16,int8,int4] [--output FOLDER]

Scores two windows as long as the model's context: the concatenated texts of integration-tests/texts, once from the
beginning and once from the middle. Calls the CPU backend without a server and compares each dtype with the first.
Writes kv-positions.md.
"""

import argparse
import math
import sys
from pathlib import Path

import numpy as np
from kv_dtypes import POOL_TOKENS, ROOT, load, score_window, tokenize, write

TEXTS = ROOT / "integration-tests/texts"
# The embedded model's context, which fills the pool.
WINDOW_TOKENS = POOL_TOKENS
# Ends of the ranges of positions.
ENDS = (256, 512, 1024, 2048, 4096, 8192)


def windows():
    whole = [token for path in sorted(TEXTS.rglob("*.txt")) for token in tokenize(path)]
    assert len(whole) >= WINDOW_TOKENS
    turned = whole[len(whole) // 2 :] + whole[: len(whole) // 2]
    return [whole[:WINDOW_TOKENS], turned[:WINDOW_TOKENS]]


def measure(dtypes):
    all_windows, base, rows = windows(), None, []
    for dtype in dtypes:
        backend, _ = load(dtype)
        # [windows, positions]: position p has the score of token p + 1.
        nlls = np.stack([score_window(backend, window)[0] for window in all_windows])
        base = nlls if base is None else base
        ranges = []
        for begin, end in zip((0, *ENDS), ENDS, strict=False):
            ours, theirs = nlls[:, begin:end], base[:, begin:end]
            change = (ours - theirs).reshape(-1)
            ranges.append(
                {
                    "begin": begin,
                    "end": end,
                    "scored_tokens": change.size,
                    "perplexity": math.exp(ours.mean()),
                    "perplexity_change": math.exp(change.mean()) - 1,
                    "standard_error": float(change.std(ddof=1) / math.sqrt(change.size)),
                    "mean_abs_logprob_difference": float(np.abs(change).mean()),
                }
            )
        change = (nlls - base).reshape(-1)
        total = {
            "perplexity": math.exp(nlls.mean()),
            "perplexity_change": math.exp(change.mean()) - 1,
            "standard_error": float(change.std(ddof=1) / math.sqrt(change.size)),
            "mean_abs_logprob_difference": float(np.abs(change).mean()),
            "scored_tokens": change.size,
        }
        rows.append({"dtype": dtype, "all": total, "ranges": ranges})
        print(dtype, total, file=sys.stderr)
        del backend
    return rows


def table(rows):
    ranges = rows[0]["ranges"]
    heads = [f"{entry['begin']:,} to {entry['end'] - 1:,}" for entry in ranges]
    lines = ["| K and V | " + " | ".join([*heads, "all"]) + " |", "|" + "---|" * (len(heads) + 2)]
    for row in rows:
        cells = [*row["ranges"], row["all"]]
        if row is rows[0]:
            texts = [f"{cell['perplexity']:.3f}" for cell in cells]
        else:
            texts = [
                f"{cell['perplexity_change']:+.2%} ± {cell['standard_error']:.2%} "
                f"({cell['mean_abs_logprob_difference']:.3f})"
                for cell in cells
            ]
        lines.append(f"| {row['dtype']} | " + " | ".join(texts) + " |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="bf16,f16,int8,int4")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results")
    arguments = parser.parse_args()
    rows = measure(arguments.dtypes.split(","))
    text = (
        "# K and V by dtype and position\n\n`make bench NAME=kv-positions`: the embedded model on the CPU backend, two "
        f"windows of {WINDOW_TOKENS:,} tokens (its whole context) of prose, code and other languages, "
        f"{rows[0]['all']['scored_tokens']:,} scored tokens. The row of {rows[0]['dtype']} has the perplexity at these "
        "positions, the others its change ± standard error (mean |Δ logprob|).\n\n" + table(rows) + "\n"
    )
    write(arguments.output / "kv-positions.md", text)


if __name__ == "__main__":
    main()
