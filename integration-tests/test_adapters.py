"""Requests with LoRA adapters, from the command line to the kernels."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import (
    NUM_SHALLOW_LAYERS,
    TRUNKLINE,
    Trunkline,
    cached_tokens,
    http,
    serving,
    sse_events,
    wait_for,
    write_shallow,
)
from made_adapters import write_adapter

PROMPT = [1000 + 7 * position % 4001 for position in range(200)]
NAMES = ["a", "b", "c", "d"]
# Tokens of a KV block.
BLOCK = 64


def made(folder: Path, seed: int, rank: int = 8) -> Path:
    return write_adapter(folder, seed, rank=rank, num_layers=NUM_SHALLOW_LAYERS)


def ask(server: Trunkline, model: str | None, prompt: list[int] = PROMPT, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "logprobs": 2, **fields}
    body |= {} if model is None else {"model": model}
    answer = http.post(f"{server.base_url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    parsed: dict[str, Any] = answer.json()
    return parsed


def result(answer: dict[str, Any]) -> tuple[str, str]:
    choice = answer["choices"][0]
    return choice["text"], json.dumps(choice["logprobs"])


def test_results_depend_on_the_request_and_its_adapter_alone(tmp_path: Path) -> None:
    """Four adapters share two slots, and each request has the bits that it has by itself."""
    for seed, name in enumerate(NAMES):
        made(tmp_path / name, seed)
    with serving("--lora-folder", str(tmp_path), "--max-loras", "2") as server:
        models = [None, *NAMES]
        alone = {model: result(ask(server, model)) for model in models}
        assert len(set(alone.values())) == len(models)
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(lambda model: (model, ask(server, model)), models * 4))
        assert all(result(answer) == alone[model] for model, answer in answers)
        assert server.metrics()["trunkline_adapter_evictions_total"] >= 2
        assert all(answer["model"] == model for model, answer in answers if model)
        half = result(ask(server, None, lora=[{"id": 0, "scale": 0.5}]))
        assert half not in alone.values()
        assert result(ask(server, None, lora=[{"id": 0, "scale": 1}])) == alone["a"]
        listed = [model["id"] for model in http.get(f"{server.base_url}/v1/models").json()["data"]]
        assert listed[1:] == NAMES
        table = subprocess.run(
            [str(TRUNKLINE), "adapters", "--url", server.base_url],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        assert all(name in table for name in NAMES)


def test_drafts_change_nothing(tmp_path: Path) -> None:
    made(tmp_path, 1)
    with serving("--lora", f"one={tmp_path}") as server:

        def chat(**fields: Any) -> dict[str, Any]:
            body = {"model": "one", "messages": [{"role": "user", "content": "Name the days of the week."}]}
            body |= {"max_tokens": 48, "temperature": 0, "logprobs": True, **fields}
            answer = http.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=60)
            assert answer.status_code == 200, answer.text
            parsed: dict[str, Any] = answer.json()
            return parsed

        plain = chat(prediction={"type": "content", "content": "another text"})
        expected = plain["choices"][0]
        text = expected["message"]["content"]
        drafted = chat(prediction={"type": "content", "content": text})
        assert drafted["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 10
        assert drafted["choices"][0] == expected


def test_an_adapter_that_changes_meets_no_old_blocks(tmp_path: Path) -> None:
    folders = {name: made(tmp_path / "adapters" / name, seed) for seed, name in enumerate("ab")}
    disk = ("--kv-disk-path", str(tmp_path / "kv"), "--kv-disk-size", "1GiB")
    flags = ("--lora-folder", str(tmp_path / "adapters"), "--max-loras", "1", *disk)
    with serving(*flags) as server:
        first = ask(server, "a")
        assert (cached_tokens(first), cached_tokens(ask(server, "a"))) == (0, 199)
        assert cached_tokens(ask(server, "b")) == 0, "which also takes the slot"
        made(folders["a"], 7)
        changed = http.post(f"{server.base_url}/v1/completions", json={"model": "a", "prompt": [5, 6], "max_tokens": 1})
        assert (changed.status_code, changed.json()["error"]["code"]) == (502, "adapter_failed")
        assert "has changed" in changed.json()["error"]["message"]
        again = ask(server, "a")
        assert cached_tokens(again) == 0
        assert result(again) != result(first)
        assert cached_tokens(ask(server, "b")) > 0, "others are untouched"
    with serving(*flags) as server:
        assert cached_tokens(ask(server, "a")) > 0, "blocks of an adapter outlive the server"
        made(folders["a"], 0)
    with serving(*flags) as server:
        old = ask(server, "a")
        assert (cached_tokens(old) > 0, result(old)) == (True, result(first)), "as do those of the first contents"


def test_the_object_store_has_blocks_by_the_contents_of_an_adapter(tmp_path: Path) -> None:
    prompt = PROMPT * 2  # fewer than four blocks are not downloaded
    folders = [made(tmp_path / name, seed) for seed, name in enumerate("ab")]

    def flags(name: str) -> tuple[str, ...]:
        disk = ("--kv-disk-path", str(tmp_path / name), "--kv-disk-size", "1GiB")
        return ("--lora", f"one={folders[0]}", *disk, "--kv-object-store", f"file://{tmp_path / 'objects'}")

    with serving(*flags("first")) as server:
        first = result(ask(server, "one", prompt))
        uploaded = "trunkline_object_uploaded_blocks_total"
        wait_for(lambda: server.metrics()[uploaded] >= len(prompt) // BLOCK, "the objects of the prompt")
    with serving(*flags("second")) as server:
        again = ask(server, "one", prompt)
        assert (cached_tokens(again), result(again)) == (len(prompt) // BLOCK * BLOCK, first)
        load = {"lora_name": "one", "lora_path": str(folders[1]), "load_inplace": True}
        assert http.post(f"{server.base_url}/v1/load_lora_adapter", json=load).status_code == 200
        other = ask(server, "one", prompt)
        assert (cached_tokens(other), result(other) == first) == (0, False)


def test_a_stream_with_an_adapter_survives_a_killed_shard(tmp_path: Path) -> None:
    made(tmp_path / "a", 1)
    with serving("--lora", f"one={tmp_path / 'a'}") as server:
        expected = ask(server, "one", max_tokens=64, ignore_eos=True)["choices"][0]["text"]
        (shard,) = server.pids("trunkline_server serve")
        body = {
            "model": "one",
            "prompt": PROMPT,
            "max_tokens": 64,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        texts = []
        with http.stream("POST", f"{server.base_url}/v1/completions", json=body, timeout=60) as answer:
            for event in sse_events(answer.iter_lines()):
                if event == "[DONE]":
                    break
                texts.append(event["choices"][0]["text"])
                if len(texts) == 5:
                    metrics = http.get(f"{server.base_url}/metrics").text
                    assert 'running_lora_adapters="one",waiting_lora_adapters=""' in metrics
                    os.kill(shard, signal.SIGKILL)
        assert "".join(texts) == expected


def test_a_bad_adapter_fails_alone(tmp_path: Path) -> None:
    made(tmp_path / "good", 1)
    made(tmp_path / "large", 2, rank=9)
    (tmp_path / "empty").mkdir()
    with serving("--lora-folder", str(tmp_path), "--max-lora-rank", "8") as server:
        for name, problem in (
            ("large", "has rank 9, but `--max-lora-rank` is 8"),
            ("empty", "has no `adapter_config.json`"),
        ):
            refused = http.post(f"{server.base_url}/v1/completions", json={"model": name, "prompt": "a"})
            assert refused.status_code == 400, refused.text
            assert problem in refused.json()["error"]["message"]
        ask(server, "good")
        url = f"{server.base_url}/v1/load_lora_adapter"
        loaded = http.post(url, json={"lora_name": "more", "lora_path": str(tmp_path / "good")})
        assert loaded.status_code == 200, loaded.text
        assert result(ask(server, "more")) == result(ask(server, "good"))


def test_an_adapter_is_registered_for_a_model_that_is_not_in_memory(tmp_path: Path) -> None:
    adapter = made(tmp_path / "adapter", 1)
    for name in ("first", "second"):
        write_shallow(tmp_path / f"{name}.gguf")
    first, second = (str(tmp_path / f"{name}.gguf") for name in ("first", "second"))
    with serving("--lora", f"one={adapter}", model=second) as server:
        expected, without = (result(ask(server, name)) for name in ("one", None))
    assert expected != without
    with serving(second, "--enable-lora", "--max-batch-total-tokens", "4096", model=first) as server:

        def manage(action: str, **fields: str) -> int:
            body = {"lora_name": "one", "base_model_name": "second", **fields}
            return http.post(f"{server.base_url}/v1/{action}_lora_adapter", json=body).status_code

        def is_loaded() -> bool:
            states = {
                model["id"]: model.get("status") for model in http.get(f"{server.base_url}/v1/models").json()["data"]
            }
            return states["second"]["value"] == "loaded"

        assert manage("load", lora_path=str(adapter)) == 200
        assert not is_loaded()
        assert result(ask(server, "second:one")) == expected
        assert is_loaded() and result(ask(server, "second")) == without
        refused = http.post(f"{server.base_url}/v1/completions", json={"model": "first:one", "prompt": "a"})
        assert refused.status_code == 404, refused.text
        assert manage("unload") == 200 and manage("unload") == 404
