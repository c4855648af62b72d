"""Compares a model with experts with a dense one of the size that a token uses, here and in llama.cpp.

    make bench NAME=experts [ARGS="--repeat 5 --peers llamacpp --save"]

The models have random weights in Q4_1 and the shape of Qwen3-30B-A3B cut to two layers (128 experts of 768 features, of
which a token uses 8), and of a dense Qwen3 with an MLP of 8 times 768 features. They have the embedded model's
tokenizer. Prompts are token ids without common prefixes. A prefill rate is that of a prompt of 2,048 tokens until its
first token, a decode rate that of one stream behind its first token; both are medians.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "integration-tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import embedded_gguf
from peers import llamacpp, trunkline
from peers.peer import Peer, Setting, started
from peers.workload import Prompt

ROOT = Path(__file__).resolve().parent.parent
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_SIZE = 2, 2048, 32, 4, 128
EXPERTS, USED, EXPERT_SIZE = 128, 8, 768
CONTEXT = 8192
PROMPT_TOKENS, OUTPUT_TOKENS = 2048, 64
START_LIMIT_S = 300.0
# Tokenizer keys that begin a model file of the same vocabulary.
TOKENIZER = ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.token_type",
             "tokenizer.ggml.merges", "tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id")  # fmt: skip
# llama.cpp without HTTP, because its server sends nothing for tokens without text, which random weights like.
PEERS: dict[str, Peer] = {
    "trunkline": trunkline.PEERS[0],
    "llamacpp": next(peer for peer in llamacpp.PEERS if peer.raw),
}


@dataclass(frozen=True)
class Model:
    name: str
    architecture: str
    num_experts: int


MODELS = (Model("dense", "qwen3", 0), Model("experts", "qwen3moe", EXPERTS))


def write_model(model: Model, path: Path) -> None:
    """Writes random weights, with scales that keep activations at a normal magnitude."""
    writer = gguf.GGUFWriter(path, model.architecture)
    inner = EXPERT_SIZE if model.num_experts else USED * EXPERT_SIZE
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(USED * EXPERT_SIZE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_SIZE)
    writer.add_value_length(HEAD_SIZE)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    if model.num_experts:
        writer.add_expert_count(model.num_experts)
        writer.add_expert_used_count(USED)
        writer.add_expert_feed_forward_length(EXPERT_SIZE)
    vocab_size = copy_tokenizer(writer)
    chooser = np.random.default_rng(1)

    def matrix(name: str, *shape: int) -> None:
        blocks = chooser.integers(0, 256, (*shape[:-1], shape[-1] // 32, 20), dtype=np.uint8)
        blocks[..., :4] = np.array([0.008, -0.06], dtype=np.float16).view(np.uint8)
        writer.add_tensor(name, blocks.reshape(*shape[:-1], -1), raw_dtype=gguf.GGMLQuantizationType.Q4_1)

    def vector(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, dtype=np.float32))

    matrix("token_embd.weight", vocab_size, HIDDEN)
    vector("output_norm.weight", HIDDEN)
    for layer in range(LAYERS):
        name = f"blk.{layer}"
        for norm, size in (("attn_norm", HIDDEN), ("ffn_norm", HIDDEN), ("attn_q_norm", HEAD_SIZE),
                           ("attn_k_norm", HEAD_SIZE)):  # fmt: skip
            vector(f"{name}.{norm}.weight", size)
        matrix(f"{name}.attn_q.weight", HEADS * HEAD_SIZE, HIDDEN)
        matrix(f"{name}.attn_k.weight", KV_HEADS * HEAD_SIZE, HIDDEN)
        matrix(f"{name}.attn_v.weight", KV_HEADS * HEAD_SIZE, HIDDEN)
        matrix(f"{name}.attn_output.weight", HIDDEN, HEADS * HEAD_SIZE)
        stack, suffix = ((model.num_experts,), "_exps") if model.num_experts else ((), "")
        if model.num_experts:
            router = chooser.standard_normal((model.num_experts, HIDDEN), dtype=np.float32) / HIDDEN**0.5
            writer.add_tensor(f"{name}.ffn_gate_inp.weight", router)
        matrix(f"{name}.ffn_gate{suffix}.weight", *stack, inner, HIDDEN)
        matrix(f"{name}.ffn_up{suffix}.weight", *stack, inner, HIDDEN)
        matrix(f"{name}.ffn_down{suffix}.weight", *stack, HIDDEN, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def copy_tokenizer(writer: gguf.GGUFWriter) -> int:
    """Copies the embedded model's tokenizer. Returns the size of its vocabulary."""
    fields = gguf.GGUFReader(embedded_gguf()).fields
    for key in TOKENIZER:
        field = fields[key]
        kind = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=kind)
    return len(fields["tokenizer.ggml.tokens"].contents())


def measure(peer: Peer, path: Path, repeat: int) -> tuple[float, float]:
    """Returns tokens per second of prefill and of decode."""
    setting = Setting(path, len(os.sched_getaffinity(0)), START_LIMIT_S)
    peer.install(setting)
    chooser = random.Random(1)
    prefill, decode = [], []
    with started(peer, setting, Prompt([100], "A")) as server:
        for _ in range(repeat + 1):
            prompt = Prompt(chooser.choices(range(1000, 40_000), k=PROMPT_TOKENS), "")
            (stream,) = server.batch([prompt], OUTPUT_TOKENS, 300.0)
            prefill.append(PROMPT_TOKENS / stream.ttft_s)
            decode.append(1 / stream.tpot_s)
    # The first round touches memory for the first time.
    return statistics.median(prefill[1:]), statistics.median(decode[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peers", default="llamacpp", help="compare with some of llamacpp")
    parser.add_argument("--save", action="store_true", help="write benchmark/results/experts.md")
    options = parser.parse_args()
    names = ["trunkline", *filter(None, options.peers.split(","))]
    lines = ["| server | prefill, dense | experts | ratio | decode, dense | experts | ratio |", "|---" * 7 + "|"]
    with tempfile.TemporaryDirectory() as folder:
        paths = {model.name: Path(folder) / f"{model.name}.gguf" for model in MODELS}
        for model in MODELS:
            print(f"writing {model.name}", file=sys.stderr)
            write_model(model, paths[model.name])
        for name in names:
            print(f"measuring {name}", file=sys.stderr)
            rates = {model.name: measure(PEERS[name], paths[model.name], options.repeat) for model in MODELS}
            cells = [
                f"{rates['dense'][kind]:.0f} | {rates['experts'][kind]:.0f} "
                f"| {rates['experts'][kind] / rates['dense'][kind]:.2f}"
                for kind in (0, 1)
            ]
            lines.append(f"| {name} | {cells[0]} | {cells[1]} |")
    text = "\n".join(lines)
    print(text)
    if options.save:
        arguments = f"--peers {options.peers} --save"
        title = f'# Experts\n\n`make bench NAME=experts ARGS="{arguments}"`, tokens per second\n\n'
        (ROOT / "benchmark/results/experts.md").write_text(f"{title}{text}\n")


if __name__ == "__main__":
    main()
