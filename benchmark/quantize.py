"""Compares quantised weights with the unquantised ones, beside llama.cpp's types of about the same size.

python benchmark/quantize.py [--windows 10] [--output FOLDER]

The embedded model exists here only quantised, so the weights that it stands for are first rearranged: the order of
hidden features, of features inside each MLP and of values inside each head is drawn by lot, which changes no result and
puts other weights into each block of 32. The tool of llama.cpp, built if need be, quantises the same file. The cpu
backend computes all of them. Writes quantize.md.
"""

import argparse
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from kv_dtypes import ROOT, TEXT, WINDOW_TOKENS, scores, tokenize, write

sys.path[:0] = [str(ROOT / "benchmark")]
OURS = ("int8", "int4")
THEIRS = ("Q8_0", "Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M")


def rearranged(tensors, config, draw):
    """Returns tensors by GGUF name with their features in another order, which is the same for all that meet."""
    hidden = draw.permutation(config.hidden_size)
    out = {}
    for name, values in tensors.items():
        if not name.startswith("blk."):
            out[name] = values[..., hidden]
    for layer in range(config.num_layers):
        inner = draw.permutation(config.mlp.size)
        groups = config.num_heads // config.num_kv_heads
        heads = [draw.permutation(config.head_size) for _ in range(config.num_kv_heads)]
        values = np.concatenate([head * config.head_size + order for head, order in enumerate(heads)])
        results = [heads[head // groups] + head * config.head_size for head in range(config.num_heads)]
        rows = {"ffn_gate": inner, "ffn_up": inner, "ffn_down": hidden, "attn_v": values, "attn_output": hidden}
        columns = {"ffn_down": inner, "attn_output": np.concatenate(results)}
        for name in (name for name in tensors if name.startswith(f"blk.{layer}.")):
            part = name.split(".")[2]
            moved = tensors[name][..., columns.get(part, hidden)]
            out[name] = moved[rows[part]] if part in rows else moved
    return out


def write_unquantised(path):
    """Writes the embedded model's weights in bf16, rearranged."""
    from harness import embedded_gguf
    from trunkline_server.export.gguf_writer import Entry
    from trunkline_server.export.gguf_writer import write as write_gguf
    from trunkline_server.weights.checkpoint import open_checkpoint
    from trunkline_server.weights.dequantize import dequantize

    checkpoint = open_checkpoint(embedded_gguf())
    (file,) = checkpoint.files
    tensors = {name: dequantize(file.tensor(name)) for name in file.tensors}
    moved = rearranged(tensors, checkpoint.config, np.random.default_rng(1))
    entries = []
    for name, values in moved.items():
        if values.ndim == 1:
            stored_as, data = "F32", values.astype("<f4").tobytes()
        else:
            bits = values.astype("<f4").view("<u4")
            # Rounded to nearest, ties to even.
            stored_as, data = "BF16", ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
        entries.append(Entry(name, stored_as, values.shape, lambda data=data: data))
    metadata = {key: file.stored_value(key) for key in file.metadata} | {"general.file_type": 32}
    write_gguf(path, metadata, entries)


def results_of(path, option, token_ids, num_windows):
    from trunkline_server.backends.registry import BackendOptions, build
    from trunkline_server.weights.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    options = BackendOptions(max_batch_total_tokens=2048, kv_cache_dtype="bf16", quantize=option)
    return scores(build("cpu", checkpoint, options), token_ids, num_windows)


def size_of(path):
    """Returns the bytes of a file's tensors."""
    from trunkline_server.weights.gguf import GgufFile

    return sum(info.num_bytes for info in GgufFile(path).tensors.values())


def measure(folder, num_windows):
    from peers.llamacpp import BUILD, install
    from trunkline_server.export.quantize import quantize_model

    install()
    plain, token_ids = folder / "plain.gguf", tokenize(TEXT)
    write_unquantised(plain)
    base = results_of(plain, "none", token_ids, num_windows)
    files = [("bf16", plain)]
    for bits in OURS:
        files.append((f"`--quantize {bits}`", folder / f"{bits}.gguf"))
        quantize_model(str(plain), files[-1][1], bits, None)
    for name in THEIRS:
        files.append((f"llama.cpp {name}", folder / f"{name}.gguf"))
        tool = [BUILD / "bin/llama-quantize", plain, files[-1][1], name]
        subprocess.run(tool, check=True, capture_output=True)
    num_weights, rows = size_of(plain) / 2, []
    for name, path in files:
        nlls, likeliest = results_of(path, "none", token_ids, num_windows)
        rows.append(
            f"| {name} | {8 * size_of(path) / num_weights:.2f} | {math.exp(nlls.mean()):.3f} "
            f"| {math.exp(nlls.mean() - base[0].mean()) - 1:+.2%} | {np.abs(nlls - base[0]).mean():.4f} "
            f"| {(likeliest == base[1]).mean():.1%} |"
        )
        print(rows[-1], file=sys.stderr, flush=True)
    return rows, len(base[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=int, default=10)
    parser.add_argument("--output", type=Path, default=ROOT / "benchmark/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows, num_tokens = measure(Path(folder), arguments.windows)
    head = "| weights | bits a weight | perplexity | change | mean \\|Δ logprob\\| | same likeliest token |\n"
    text = (
        "# Quantised weights\n\n`make bench NAME=quantize`: the embedded model's weights in bf16, their features in "
        f"another order, {num_tokens:,} tokens of prose in windows of {WINDOW_TOKENS:,}, computed by the `cpu` backend "
        "with K and V in bf16. llama.cpp's files come from `llama-quantize` without an importance matrix; rows of 576 "
        "weights are no multiple of 256, for which its K types take larger ones.\n\n"
        f"{head}{'|---' * 6}|\n" + "\n".join(rows) + "\n"
    )
    write(arguments.output / "quantize.md", text)


if __name__ == "__main__":
    main()
