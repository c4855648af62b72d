"""Perplexity by position in each dtype of K and V, up to the whole context of the embedded model.

python benchmark/kv_positions.py [--dtypes bf16,f16,int8,int4] [--output FOLDER]

Two windows of the model's context: the texts of integration-tests/texts in order of their names, one behind the other,
and the same from behind the first half of the long one on. Calls the CPU backend without a server. The first dtype is
what the others are compared with. Writes kv-positions.md and kv-positions.json.
"""

import argparse
import json
import math
import sys
from pathlib import Path

import numpy as np
from kv_dtypes import POOL_TOKENS, ROOT, load, score_window

TEXTS = ROOT / "integration-tests/texts"
# The embedded model's context, and all of the pool.
WINDOW_TOKENS = POOL_TOKENS
# Ends of the ranges of positions.
ENDS = (256, 512, 1024, 2048, 4096, 8192)


def windows():
    import transformers
    from harness import embedded_gguf

    tokenizer = transformers.AutoTokenizer.from_pretrained(embedded_gguf().parent, gguf_file=embedded_gguf().name)
    texts = [path.read_text() for path in sorted(TEXTS.rglob("*.txt"))]
    whole = [token for text in texts for token in tokenizer.encode(text, verbose=False)]
    assert len(whole) >= WINDOW_TOKENS
    turned = whole[len(whole) // 2 :] + whole[: len(whole) // 2]
    return [whole[:WINDOW_TOKENS], turned[:WINDOW_TOKENS]]


def measure(dtypes):
    all_windows, base, rows = windows(), None, []
    for dtype in dtypes:
        backend, _ = load(dtype)
        # Of each window: position p is the score of token p + 1.
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
        f"{rows[0]['all']['scored_tokens']:,} scored tokens. {rows[0]['dtype']}: perplexity at these positions; the "
        "others: its change ± standard error (mean |Δ logprob|).\n\n" + table(rows) + "\n"
    )
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "kv-positions.md").write_text(text)
    (arguments.output / "kv-positions.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(text)


if __name__ == "__main__":
    main()
