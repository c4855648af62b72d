"""Measures a prompt that is longer than the KV cache's memory: `make bench NAME=kv_memory`.

python benchmark/kv_memory.py [--tokens 200000] [--share 0.1] [--layers 20] [--output 16]

Serves a tiny Mistral with random weights twice, with the whole KV cache in memory and with `--kv-memory` at a share of
it. Sends one prompt of so many tokens to each, and the same prompt with another end. Prints the times of the prompt, of
a token behind it and of the second request's first token, the shard's largest memory, and whether answers are equal.
"""

from __future__ import annotations

import argparse
import random
import re
import tempfile
from pathlib import Path

from load import line, measure_all, streams  # isort: skip  (finds the harness)
from fairness import ROOT
from harness import peak_bytes, serving
from test_windows import ALPHABET, write_model

HEAD_SIZE = 32
BLOCK_SIZE = 64
# K and V as int8, and their scales.
LAYER_BYTES_PER_TOKEN = 2 * HEAD_SIZE + 4
# Long prompts take longer than the usual limits allow.
TIMEOUT = ("--request-timeout", "3600", "--stuck-step-timeout", "600")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--share", type=float, default=0.1, help="part of the KV cache that memory may hold")
    parser.add_argument("--layers", type=int, default=20)
    parser.add_argument("--output", type=int, default=16)
    args = parser.parse_args()
    pool_tokens = args.tokens + args.output + 8 * BLOCK_SIZE
    memory = int(args.tokens * args.share) * args.layers * LAYER_BYTES_PER_TOKEN
    print(f"{args.tokens} tokens, {args.layers} layers; memory for {args.share:.0%}: {memory >> 20} MiB\n")
    print("| KV cache | prompt, s | token behind it, ms | next request, s | largest memory, MiB | file, MiB |")
    print("|---|--:|--:|--:|--:|--:|")
    answers = []
    with tempfile.TemporaryDirectory(dir=ROOT / "target") as name:
        write(Path(name), pool_tokens, args.layers)
        flags = ("--max-batch-total-tokens", str(pool_tokens), *TIMEOUT)
        for what, more in (("in memory", ()), ("with a file", ("--kv-memory", str(memory)))):
            with serving(*flags, *more, model=name) as server:
                answer, figures = measure(server.base_url, args)
                peak, told = peak_bytes(server.shard_pid()) >> 20, re.search(r"file_mib=(\d+)", server.log())
            answers.append(answer)
            print(f"| {what} | {figures} | {peak} | {told.group(1) if told else 0} |", flush=True)
    print(f"\nequal answers: {'yes' if answers[0] == answers[1] else 'NO'}")


def write(folder: Path, max_positions: int, num_layers: int) -> None:
    config = {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_hidden_layers": num_layers,
        "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": HEAD_SIZE, "rms_norm_eps": 1e-6,
        "max_position_embeddings": max_positions, "tie_word_embeddings": False, "hidden_act": "silu",
        "rope_theta": 1e6, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "dtype": "float32",
    }  # fmt: skip
    write_model(folder, config, ("input_layernorm", "post_attention_layernorm"), 0.125)
    # The tests' model has a window, and this one must see everything.
    path = folder / "config.json"
    path.write_text(re.sub(r'"sliding_window": \d+', '"sliding_window": null', path.read_text()))


def measure(url: str, args: argparse.Namespace) -> tuple[list[str], str]:
    """Returns the texts of both answers, and the figures."""
    rng = random.Random(58)
    prompt = rng.choices(range(len(ALPHABET)), k=args.tokens)
    other_end = [*prompt[: -BLOCK_SIZE // 2], 1, 2, 3]
    prompts = [line(args.output, prompt=each, temperature=0) for each in (prompt, other_end)]
    first, second = streams(measure_all(url, prompts, "--detailed", "--timeout", "1h", num_clients=1))
    return [first.text, second.text], f"{first.ttft_s:.1f} | {first.tpot_s * 1e3:.0f} | {second.ttft_s:.2f}"


if __name__ == "__main__":
    main()
