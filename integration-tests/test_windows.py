"""Models with sliding windows: a long generation needs memory only for its window, and cached prefixes are found."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from harness import ALL_TIERS, START_DEADLINE_S, Trunkline, cached_tokens, http, serving, sse_events, wait_for

# Each character is one token, so that a text determines its tokens.
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
WINDOW = 64
BLOCK = 64
NUM_LAYERS = 3
# Far more than the pool can hold. The figure in the docs is with `TRUNKLINE_WINDOW_TOKENS=20000`.
NUM_TOKENS = int(os.environ.get("TRUNKLINE_WINDOW_TOKENS", "4000" if ALL_TIERS else "1000"))
POOL_TOKENS = 1024 if ALL_TIERS else 384
PROMPT = [(position * position + 3 * position) % len(ALPHABET) for position in range(150)]
# With f16 K and V, a token's logit may be this much below the highest one in fp32.
LOGIT_BOUND = 0.05
HEAD_SIZE = 32
# Bytes per position: layers, K and V, heads, head size, f16.
KV_BYTES = NUM_LAYERS * 2 * 4 * HEAD_SIZE * 2


def write_tokenizer(folder: Path) -> None:
    vocabulary = {character: index for index, character in enumerate(ALPHABET)}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text("{}")


def write_model(folder: Path, config: dict[str, Any], norms: tuple[str, ...], std: float) -> None:
    """Writes a model as transformers would, with normally distributed weights from a seed and initial norms."""
    config |= {"vocab_size": len(ALPHABET), "hidden_size": 64, "intermediate_size": 96, "sliding_window": WINDOW}
    heads, head_size = config["num_attention_heads"] * config["head_dim"], config["head_dim"]
    kv_heads = config["num_key_value_heads"] * head_size
    shapes = {"model.embed_tokens.weight": (len(ALPHABET), 64), "lm_head.weight": (len(ALPHABET), 64)}
    for layer in range(config["num_hidden_layers"]):
        name = f"model.layers.{layer}"
        shapes |= {f"{name}.self_attn.{part}_proj.weight": (kv_heads, 64) for part in "kv"}
        shapes |= {f"{name}.self_attn.q_proj.weight": (heads, 64), f"{name}.self_attn.o_proj.weight": (64, heads)}
        shapes |= {f"{name}.mlp.{part}_proj.weight": (96, 64) for part in ("gate", "up")}
        shapes |= {f"{name}.mlp.down_proj.weight": (64, 96)}
        shapes |= {f"{name}.{norm}.weight": (64,) for norm in norms}
    shapes["model.norm.weight"] = (64,)
    noise = np.random.default_rng(0)
    # Gemma's norms multiply by 1 plus the stored value.
    scale = 0.0 if config["model_type"].startswith("gemma") else 1.0
    tensors = {
        name: np.full(shape, scale, np.float32) if len(shape) == 1 else noise.normal(0, std, shape).astype(np.float32)
        for name, shape in shapes.items()
        if not (name == "lm_head.weight" and config["tie_word_embeddings"])
    }
    safetensors.numpy.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Mistral whose layers all see `WINDOW` positions."""
    folder = tmp_path_factory.mktemp("mistral")
    config = {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": HEAD_SIZE, "max_position_embeddings": 32768,
        "tie_word_embeddings": False, "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "dtype": "float32",
    }  # fmt: skip
    write_model(folder, config, ("input_layernorm", "post_attention_layernorm"), 0.125)
    return folder


def options(num_tokens: int) -> list[str]:
    return [
        "--kv-cache-dtype", "f16", "--threads", "1", "--max-batch-total-tokens", str(num_tokens),
        "--max-step-sequences", "4", "--max-batch-prefill-tokens", "128",
    ]  # fmt: skip


def private_kib(pid: int) -> int:
    """Returns the process's anonymous memory, which excludes files that a store maps."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))


def generate(server: Trunkline, num_tokens: int) -> tuple[list[int], list[int]]:
    """Returns the output tokens, and the shard's memory in KiB after each tenth of them."""
    text, resident, pid = "", [], server.shard_pid()
    body = {"prompt": PROMPT, "temperature": 0, "max_tokens": num_tokens, "ignore_eos": True, "stream": True}
    with http.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=300) as answer:
        assert answer.status_code == 200, answer.read()
        for event in sse_events(answer.iter_lines()):
            if isinstance(event, dict) and event["choices"]:
                text += event["choices"][0]["text"]
                if len(text) >= (len(resident) + 1) * num_tokens // 10:
                    resident.append(private_kib(pid))
    return [ALPHABET.index(character) for character in text], resident


@pytest.fixture(scope="module")
def windowed(mistral: Path) -> Iterator[Trunkline]:
    with serving(*options(POOL_TOKENS), model=str(mistral)) as server:
        assert "window parts enabled" in server.log()
        yield server


def test_text_longer_than_the_pool_equals_that_with_whole_blocks(mistral: Path, windowed: Trunkline) -> None:
    assert NUM_TOKENS > 2 * POOL_TOKENS
    tokens, resident = generate(windowed, NUM_TOKENS)
    with serving(*options(len(PROMPT) + NUM_TOKENS), "--kv-windows", "off", model=str(mistral)) as server:
        whole, resident_whole = generate(server, NUM_TOKENS)
    assert len(set(tokens[-500:])) > len(ALPHABET) // 4, "the text repeats itself"
    print("KiB of the shard by tenths, separate windows:", *resident, "whole blocks:", *resident_whole)
    assert len(tokens) == NUM_TOKENS
    assert tokens == whole
    # Measured from when all window parts are in use; before that, the shard still releases memory from its start.
    assert POOL_TOKENS < 4 * NUM_TOKENS // 10
    kv_kib = KV_BYTES * NUM_TOKENS * 6 // 10 >> 10
    assert resident[-1] - resident[3] < kv_kib // 20
    if ALL_TIERS:
        # Memory grows in pages of 2 MiB, which shorter texts may not fill.
        assert resident_whole[-1] - resident_whole[3] > kv_kib // 3
        check_with_transformers(mistral, PROMPT + tokens)


def check_with_transformers(folder: Path, token_ids: list[int]) -> None:
    """Checks that transformers finds each of the first and last 1,000 tokens likeliest, or nearly so."""
    import torch
    import transformers

    model = transformers.MistralForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    # The number of positions that affect a position through all layers.
    reach = NUM_LAYERS * (WINDOW - 1) + 1
    num_equal, num_compared = 0, 0
    for begin, first in ((0, len(PROMPT)), (len(token_ids) - 1000 - reach, len(token_ids) - 1000)):
        piece = token_ids[begin : begin + 1000 + max(reach, len(PROMPT))]
        positions = torch.arange(begin, begin + len(piece))[None]
        with torch.inference_mode():
            logits = model(torch.tensor([piece]), position_ids=positions, use_cache=False).logits[0]
        for position in range(first, begin + len(piece)):
            row = logits[position - 1 - begin]
            chosen = token_ids[position]
            assert row.max() - row[chosen] < LOGIT_BOUND, f"token {position} is not the likeliest"
            num_equal += int(row.argmax()) == chosen
            num_compared += 1
    print(f"{num_equal} of {num_compared} tokens are those of transformers")
    assert num_equal > 0.99 * num_compared


def test_second_turn_finds_the_window_that_it_needs(windowed: Trunkline) -> None:
    first = windowed.complete(PROMPT, max_tokens=100, ignore_eos=True)
    answer = [ALPHABET.index(character) for character in first["choices"][0]["text"]]
    second = [*PROMPT, *answer, 5, 6, 7]
    cold = windowed.complete(second, max_tokens=50, ignore_eos=True, logprobs=1, cache_salt="other")
    hit = windowed.complete(second, max_tokens=50, ignore_eos=True, logprobs=1)
    assert cached_tokens(hit) > len(PROMPT)
    assert cached_tokens(cold) == 0
    assert hit["choices"][0]["text"] == cold["choices"][0]["text"]
    assert hit["choices"][0]["logprobs"] == cold["choices"][0]["logprobs"]


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Gemma 2, in which every other layer has a window."""
    folder = tmp_path_factory.mktemp("gemma")
    config = {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 24, "query_pre_attn_scalar": 24,
        "max_position_embeddings": 8192, "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "dtype": "float32",
    }  # fmt: skip
    norms = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
    write_model(folder, config, norms, 0.125)
    return folder


@pytest.fixture(scope="module")
def mixed(gemma: Path) -> Iterator[Trunkline]:
    """A server with a small pool, on a model that has layers with and without windows."""
    with serving(*options(2048), model=str(gemma)) as server:
        assert "window parts enabled" in server.log()
        yield server


def test_concurrent_texts_in_a_small_pool_equal_those_with_whole_blocks(gemma: Path, mixed: Trunkline) -> None:
    prompts = [[*PROMPT[: 40 * index], *PROMPT[index:]] for index in range(6)]

    def texts(server: Trunkline) -> list[str]:
        def complete(prompt: list[int]) -> str:
            text: str = server.complete(prompt, max_tokens=300, ignore_eos=True)["choices"][0]["text"]
            return text

        with ThreadPoolExecutor(len(prompts)) as pool:
            return list(pool.map(complete, prompts))

    apart = [texts(mixed), texts(mixed)]
    wait_for(mixed.is_idle, "the end of all")
    parts = window_parts(mixed)
    # No sequence runs, so parts in use are kept only for later hits.
    assert (parts["needed"], parts["dropped"] > 0, 0 <= parts["free"] < parts["total"]) == (0, True, True)
    totals = http.get(f"{mixed.base_url}/v1/kv").json()
    nodes = http.get(f"{mixed.base_url}/v1/kv/tree", params={"limit": 1000}).json()["data"]
    taken = sum(node["bytes"] for node in nodes)
    assert taken == totals["device"]["used_bytes"] <= totals["device"]["bytes"]
    assert taken < sum(node["blocks"] for node in nodes) * totals["block_bytes"], "no part was dropped"
    with serving(*options(8192), "--kv-windows", "off", model=str(gemma)) as server:
        assert "window parts enabled" not in server.log()
        assert set(window_parts(server).values()) == {0}
        whole = texts(server)
    assert apart == [whole, whole]


@pytest.mark.parametrize("name", ["gemma", pytest.param("mistral", marks=pytest.mark.full)])
def test_history_is_restored_after_a_kill_and_continues_with_the_same_bits(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    folder = request.getfixturevalue(name)
    without_store: Trunkline = request.getfixturevalue("windowed" if name == "mistral" else "mixed")
    # The window of position 640 begins in the tenth block, so the nine blocks before it need no window part.
    history = [(7 * position + position // 50) % len(ALPHABET) for position in range(10 * BLOCK + 30)]
    fields: dict[str, Any] = {"max_tokens": 150, "temperature": 0.8, "seed": 3, "logprobs": 1, "ignore_eos": True}
    expected = without_store.complete(history, **fields)["choices"]
    store = ["--kv-disk-path", str(tmp_path), "--kv-disk-size", "64MiB"]
    with serving(*options(2048), *store, model=str(folder)) as server:
        assert "window parts enabled" in server.log()
        assert server.complete(history, **fields)["choices"] == expected
        shard = server.shard_pid()
        os.kill(shard, signal.SIGKILL)
        # A request that starts on the dying shard counts what that one has cached.
        wait_for(lambda: server.shard_pid() != shard and server.is_ready(), "another shard", START_DEADLINE_S)
        assert is_restored(server, history, fields, expected)
        assert window_parts(server)["needed"] == 0
    # The format of a slot does not depend on whether windows are separate.
    with serving(*options(2048), *store, "--kv-windows", "off", model=str(folder)) as server:
        assert is_restored(server, history, fields, expected)


def is_restored(server: Trunkline, history: list[int], fields: dict[str, Any], expected: Any) -> bool:
    """Checks the answer, and returns whether it restored ten blocks."""
    answer = server.complete(history, **fields)
    assert answer["choices"] == expected
    assert cached_tokens(answer) == 10 * BLOCK
    return server.metrics()["trunkline_restored_blocks_total"] == 10


def window_parts(server: Trunkline) -> dict[str, int]:
    names = {
        "total": "trunkline_kv_window_parts",
        "free": "trunkline_kv_window_parts_free",
        "needed": "trunkline_kv_window_parts_needed",
        "dropped": "trunkline_dropped_window_parts_total",
    }
    metrics = server.metrics()
    return {key: int(metrics[name]) for key, name in names.items()}
