"""A model of 7 billion weights, whose file is a hole of the right size: memory and progress of both kinds of start."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.cpu.tiny_backend import build_tiny
from trunkline_server.weights.checkpoint import open_checkpoint

pytestmark = pytest.mark.full

HIDDEN, INNER, VOCABULARY, LAYERS = 4096, 11_008, 32_000, 32
DEADLINE_S = 30.0


def write_hole(path: Path) -> None:
    """Writes the header of Llama 2 7B in Q4_K, and zeros that take no space on disk."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(4096)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(32)
    writer.add_head_count_kv(32)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCABULARY)
    num_bytes = 0

    def add(name: str, *shape: int, kind: str = "Q4_K") -> None:
        nonlocal num_bytes
        quantization = gguf.GGMLQuantizationType[kind]
        block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
        row_bytes = shape[-1] // block * block_bytes
        stored = shape if kind == "F32" else (*shape[:-1], row_bytes)
        own_bytes = row_bytes * (shape[0] if len(shape) > 1 else 1)
        dtype = np.dtype(np.float32 if kind == "F32" else np.uint8)
        writer.add_tensor_info(name, stored, dtype, own_bytes, raw_dtype=quantization)
        num_bytes += -(-own_bytes // gguf.GGUF_DEFAULT_ALIGNMENT) * gguf.GGUF_DEFAULT_ALIGNMENT

    add("token_embd.weight", VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", HIDDEN, HIDDEN)
        for name in ("ffn_gate", "ffn_up"):
            add(f"blk.{layer}.{name}.weight", INNER, HIDDEN)
        add(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", HIDDEN, kind="F32")
    add("output_norm.weight", HIDDEN, kind="F32")
    add("output.weight", VOCABULARY, HIDDEN, kind="Q6_K")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    header_bytes = -(-path.stat().st_size // gguf.GGUF_DEFAULT_ALIGNMENT) * gguf.GGUF_DEFAULT_ALIGNMENT
    os.truncate(path, header_bytes + num_bytes)


def start() -> None:
    """Starts a backend on the file and cache of the arguments, and prints the peaks of its memory and its size."""
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    backend = build_tiny(open_checkpoint(Path(sys.argv[1])), weights_cache=Path(sys.argv[2]), available_bytes=1 << 34)
    status = Path("/proc/self/status").read_text()
    peak_kib, anonymous_kib = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) for name in ("VmHWM", "RssAnon"))
    print(f"weights {backend.info.weight_bytes >> 20} peak {peak_kib >> 10} anonymous {anonymous_kib >> 10}")
    backend.after_start()


def test_both_starts_of_seven_billion_weights(tmp_path: Path) -> None:
    path = tmp_path / "seven.gguf"
    write_hole(path)
    deadline = time.monotonic() + DEADLINE_S
    while not open_checkpoint(path).identity().is_settled:
        assert time.monotonic() < deadline
    outputs = [
        subprocess.run(
            [sys.executable, "-m", "tests.cpu.test_large_model", str(path), str(tmp_path / "cache")],
            # The standard error shows in pytest's report.
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    numbers = [re.search(r"weights (\d+) peak (\d+) anonymous (\d+)", output) for output in outputs]
    first, second = (tuple(map(int, found.groups())) for found in numbers if found is not None)
    assert "weights packed" in outputs[0] and "weights mapped" in outputs[1]
    assert first[0] == second[0] > 4000
    # Source pages are dropped as they are packed.
    assert first[1] < 1.1 * first[0]
    assert second[2] < 0.05 * second[0]


if __name__ == "__main__":
    start()
