"""A model with recurrent layers: turns, equal beginnings and load find cached states, and change no token."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
from harness import Trunkline, cached_tokens, http, serving
from test_windows import ALPHABET, BLOCK, write_tokenizer

HIDDEN, INNER, WIDTH = 64, 96, 3
LAYERS = ["conv", "full_attention", "conv", "conv"]
NUM_OUTPUT = 40


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trunkline]:
    """Serves a random LFM2."""
    folder = tmp_path_factory.mktemp("lfm2")
    config = {
        "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "vocab_size": len(ALPHABET), "hidden_size": HIDDEN,
        "intermediate_size": INNER, "block_auto_adjust_ff_dim": False, "num_hidden_layers": len(LAYERS),
        "num_attention_heads": 4, "num_key_value_heads": 2, "layer_types": LAYERS, "conv_L_cache": WIDTH,
        "max_position_embeddings": 4096, "tie_word_embeddings": True, "norm_eps": 1e-5, "rope_theta": 1e6,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "dtype": "float32",
    }  # fmt: skip
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (len(ALPHABET), HIDDEN)}
    for layer, kind in enumerate(LAYERS):
        name = f"model.layers.{layer}"
        if kind == "conv":
            shapes |= {
                f"{name}.conv.in_proj.weight": (3 * HIDDEN, HIDDEN),
                f"{name}.conv.conv.weight": (HIDDEN, 1, WIDTH),
            }
            shapes[f"{name}.conv.out_proj.weight"] = (HIDDEN, HIDDEN)
        else:
            shapes |= {f"{name}.self_attn.{part}_proj.weight": (HIDDEN // 2, HIDDEN) for part in "kv"}
            shapes |= {f"{name}.self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in ("q", "out")}
            shapes |= {f"{name}.self_attn.{part}_layernorm.weight": (HIDDEN // 4,) for part in "qk"}
        shapes |= {f"{name}.feed_forward.{part}.weight": (INNER, HIDDEN) for part in ("w1", "w3")}
        shapes[f"{name}.feed_forward.w2.weight"] = (HIDDEN, INNER)
        shapes |= {f"{name}.{norm}.weight": (HIDDEN,) for norm in ("operator_norm", "ffn_norm")}
    shapes["model.embedding_norm.weight"] = (HIDDEN,)
    noise = np.random.default_rng(0)
    tensors = {
        name: np.ones(shape, np.float32) if len(shape) == 1 else noise.normal(0, 0.25, shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    with serving("--threads", "1", "--max-batch-prefill-tokens", "128", model=str(folder)) as server:
        yield server


def text(seed: int, length: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, len(ALPHABET), length).tolist()


def complete(server: Trunkline, prompt: list[int], seed: int = 0) -> tuple[list[int], int]:
    """Returns the output tokens and the number of cached ones."""
    body = {"prompt": prompt, "temperature": 1, "seed": seed, "max_tokens": NUM_OUTPUT, "ignore_eos": True}
    answer = http.post(f"{server.base_url}/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [ALPHABET.index(character) for character in answer.json()["choices"][0]["text"]], cached_tokens(
        answer.json()
    )


def blocks(num_tokens: int) -> int:
    """Returns the tokens of the whole blocks."""
    return num_tokens // BLOCK * BLOCK


def test_each_turn_begins_where_the_last_one_ended(hybrid: Trunkline) -> None:
    prompt, turns = text(1, 300), []
    for turn in range(4):
        output, num_cached = complete(hybrid, prompt)
        # The last token of an output is never computed.
        assert num_cached == (blocks(len(prompt) - len(text(turn, 90)) - 1) if turn else 0)
        turns.append((prompt, output))
        prompt = prompt + output + text(turn + 1, 90)
    for prompt, output in turns:
        again, num_cached = complete(hybrid, prompt)
        assert (again, num_cached) == (output, blocks(len(prompt) - 1))


def test_the_third_prompt_finds_where_the_second_branched_off(hybrid: Trunkline) -> None:
    system = text(50, 400)
    found = [complete(hybrid, system + text(51 + user, 100)) for user in range(4)]
    cached = [num_cached for _, num_cached in found]
    assert cached[2:] == [blocks(len(system))] * 2, cached
    assert cached[0] == 0


def test_load_changes_no_token(hybrid: Trunkline) -> None:
    system = text(70, 200)
    prompts = [system + text(71 + user, 30 + 40 * user) for user in range(8)]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = [output for output, _ in pool.map(lambda prompt: complete(hybrid, prompt), prompts)]
    assert [complete(hybrid, prompt)[0] for prompt in prompts] == together
