"""The transformers backend behind the whole server: an architecture that no file of ours implements."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from harness import ROOT, Trunkline, cached_tokens, serving
from test_windows import ALPHABET, write_tokenizer

HIDDEN, LAYERS, CONTEXT = 64, 2, 256
PROMPT = [(position * position + 3 * position) % len(ALPHABET) for position in range(120)]


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    """A random GPT-2, served by the interpreter of the tests, which has torch."""
    folder = tmp_path_factory.mktemp("gpt2")
    shapes = {"wte.weight": (len(ALPHABET), HIDDEN), "wpe.weight": (CONTEXT, HIDDEN)}
    for layer in range(LAYERS):
        for name, outputs, inputs in (
            ("attn.c_attn", 3 * HIDDEN, HIDDEN), ("attn.c_proj", HIDDEN, HIDDEN),
            ("mlp.c_fc", 4 * HIDDEN, HIDDEN), ("mlp.c_proj", HIDDEN, 4 * HIDDEN),
        ):  # fmt: skip
            shapes |= {f"h.{layer}.{name}.weight": (inputs, outputs), f"h.{layer}.{name}.bias": (outputs,)}
        for norm in ("ln_1", "ln_2"):
            shapes |= {f"h.{layer}.{norm}.{part}": (HIDDEN,) for part in ("weight", "bias")}
    shapes |= {f"ln_f.{part}": (HIDDEN,) for part in ("weight", "bias")}
    noise = np.random.default_rng(0)
    tensors = {f"transformer.{name}": noise.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "model_type": "gpt2", "vocab_size": len(ALPHABET), "n_positions": CONTEXT, "n_embd": HIDDEN, "n_layer": LAYERS,
        "n_head": 4, "bos_token_id": 0, "eos_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    environment = {"TRUNKLINE_PYTHON": sys.executable, "PYTHONPATH": str(ROOT / "server")}
    flags = ("--backend", "transformers", "--max-batch-prefill-tokens", "50")
    with serving(*flags, model=str(folder), env=environment) as server:
        yield server


def bits(server: Trunkline, prompt: list[int], **fields: Any) -> Any:
    answer = server.complete(prompt, max_tokens=20, logprobs=2, ignore_eos=True, **fields)
    return answer["choices"][0]


# Starting takes ten seconds of CPU time to import torch and transformers; server/tests/transformers tests the backend.
@pytest.mark.full
def test_neighbours_and_prefix_hits_change_no_bit(gpt2: Trunkline) -> None:
    assert "the transformers backend is slower" in gpt2.log()
    prompts = [PROMPT, PROMPT[:77], PROMPT[50:], PROMPT[::-1]]
    fields = [{}, {"temperature": 0.9, "seed": 3}, {"temperature": 1.5, "seed": 4, "top_p": 0.9}, {}]
    alone = [bits(gpt2, prompt, **field) for prompt, field in zip(prompts, fields, strict=True)]
    assert len({choice["text"] for choice in alone}) == len(alone)

    def ask_all() -> list[Any]:
        with ThreadPoolExecutor(len(prompts)) as pool:
            each = [pool.submit(bits, gpt2, p, **f) for p, f in zip(prompts, fields, strict=True)]
            return [done.result() for done in each]

    assert cached_tokens(gpt2.complete(PROMPT, max_tokens=1)) == len(PROMPT) - 1
    assert ask_all() == alone
