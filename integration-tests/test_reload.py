"""A reload replaces router and shard under load, and no request fails.

`launcher/tests` covers reloads that fail.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from harness import (
    TRUNKLINE,
    Trunkline,
    alive,
    cached_tokens,
    embedded_gguf,
    http,
    serving,
    wait_for,
    write_shallow,
)

PROMPT = [1000 + 7 * position % 4001 for position in range(300)]
WHOLE_BLOCKS = 256
PAUSE_S = 0.05


def ask(server: Trunkline, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that finds the server by its private folder."""
    environment = os.environ | {"TMPDIR": server.runtime.name, "XDG_RUNTIME_DIR": server.runtime.name}
    return subprocess.run([str(TRUNKLINE), *command], env=environment, capture_output=True, text=True, timeout=120)


def reload(server: Trunkline) -> subprocess.CompletedProcess[str]:
    return ask(server, "reload", str(server.process.pid))


def children(server: Trunkline) -> set[int]:
    return {*server.pids("trunkline-router"), *server.pids("trunkline_server serve")}


@contextmanager
def clients(server: Trunkline, *loops: Callable[[httpx.Client], None]) -> Iterator[list[int]]:
    """Runs each loop in a thread again and again; yields how often each has ended. Fails if one has failed."""
    counts, failures, stop = [0] * len(loops), [], threading.Event()

    def run(index: int) -> None:
        with httpx.Client(base_url=server.base_url, timeout=120) as client:
            # The pauses leave time for the processes that start.
            while not stop.wait(PAUSE_S):
                try:
                    loops[index](client)
                except (httpx.HTTPError, AssertionError) as failure:
                    failures.append(repr(failure))
                counts[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(loops))]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []


def body(**fields: Any) -> dict[str, Any]:
    return {"prompt": "one two three", "temperature": 0, "max_tokens": 8, "ignore_eos": True} | fields


def whole(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json=body())
    assert answer.status_code == 200, answer.text


def streamed(client: httpx.Client) -> None:
    answer = client.post("/v1/completions", json=body(stream=True, max_tokens=40))
    assert answer.status_code == 200, answer.text
    assert answer.text.rstrip().endswith("[DONE]"), answer.text
    assert "error" not in answer.text, answer.text


def one_connection_each(client: httpx.Client) -> None:
    answer = httpx.post(client.base_url.join("/v1/completions"), json=body(max_tokens=2), timeout=120)
    assert answer.status_code == 200, answer.text


def probe(client: httpx.Client) -> None:
    for path in ("/readyz", "/livez"):
        assert client.get(path).status_code == 200


def test_no_request_fails_while_settings_change(tmp_path: Path) -> None:
    config = tmp_path / "trunkline.toml"
    config.write_text('served-model-name = "before"\n')
    with serving("--config", str(config)) as server:
        loops = (whole, streamed, streamed, one_connection_each, probe)
        with clients(server, *loops) as counts:
            for name in ("between", "after"):
                old = children(server)
                done = list(counts)
                wait_for(lambda done=done: all(n > d for n, d in zip(counts, done, strict=True)), "requests")
                config.write_text(f'served-model-name = "{name}"\n')
                outcome = reload(server)
                assert (outcome.returncode, outcome.stdout) == (0, "reloaded\n"), outcome.stderr
                assert server.complete("x")["model"] == name
                wait_for(lambda old=old: not any(map(alive, old)), "the old processes to end")
        assert len(children(server)) == 2
        assert "exited unexpectedly" not in server.log()
        assert "Traceback" not in server.log()


def test_no_request_fails_while_lanes_come_and_go(tmp_path: Path) -> None:
    def shards() -> int:
        return len(server.pids("trunkline_server serve"))

    def progress() -> None:
        done = list(counts)
        wait_for(lambda: all(n > d for n, d in zip(counts, done, strict=True)), "requests")

    with serving("--replicas", "2", "--kv-disk-path", str(tmp_path), "--kv-disk-size", "1GiB") as server:
        with clients(server, whole, streamed, streamed, one_connection_each, probe) as counts:
            for lane in ("1", "0"):
                progress()
                outcome = ask(server, "lanes", "drain", lane)
                assert (outcome.stdout, shards()) == (f"lane {lane} is drained\n", 1), outcome.stderr
                progress()
                outcome = ask(server, "lanes", "add", lane)
                assert (outcome.stdout, shards()) == (f"lane {lane} serves\n", 2), outcome.stderr
            old = children(server)
            assert reload(server).returncode == 0
            wait_for(lambda: not any(map(alive, old)), "the old processes to end")
            wait_for(lambda: ask(server, "lanes").stdout.count("serves") == 2, "both lanes")
            progress()
        assert shards() == 2
        assert all(word not in server.log() for word in ("WARN", "ERROR", "exited unexpectedly", "Traceback"))


def test_a_stream_is_finished_by_the_old_pair() -> None:
    with serving() as server:
        old = children(server)
        expected = server.complete("count", max_tokens=600, ignore_eos=True)["choices"][0]["text"]
        with httpx.stream(
            "POST",
            f"{server.base_url}/v1/completions",
            json=body(prompt="count", max_tokens=600, stream=True),
            timeout=120,
        ) as answer:
            lines = answer.iter_lines()
            first = next(line for line in lines if line.startswith("data:"))
            assert reload(server).returncode == 0
            rest = [first, *(line for line in lines if line.startswith("data:"))]
        assert rest.pop() == "data: [DONE]"
        events = [json.loads(line.removeprefix("data:")) for line in rest]
        assert "".join(event["choices"][0]["text"] for event in events if event["choices"]) == expected
        wait_for(lambda: not any(map(alive, old)), "the old processes to end")


def test_the_new_shard_takes_the_store_over(tmp_path: Path) -> None:
    with serving("--kv-disk-path", str(tmp_path / "kv"), "--kv-disk-size", "64MiB") as server:
        first = server.complete(PROMPT)
        wait_for(lambda: server.metrics()["trunkline_store_blocks"] >= WHOLE_BLOCKS // 64, "stored blocks")
        with clients(server, whole, streamed):
            outcome = reload(server)
            assert outcome.returncode == 0, outcome.stderr
            again = server.complete(PROMPT)
        assert cached_tokens(again) >= WHOLE_BLOCKS
        assert again["choices"] == first["choices"]
        assert server.metrics()["trunkline_restored_blocks_total"] >= WHOLE_BLOCKS // 64
        assert reload(server).returncode == 0
        assert cached_tokens(server.complete(PROMPT)) >= WHOLE_BLOCKS


def test_no_request_fails_while_the_server_of_several_models_gets_other_settings(tmp_path: Path) -> None:
    write_shallow(tmp_path / "two.gguf", 2)
    config = tmp_path / "trunkline.toml"

    def write(settings: str) -> None:
        models = [f'[[model]]\nmodel-id = "{path}"\n' for path in (embedded_gguf(), tmp_path / "two.gguf")]
        store = f'kv-disk-path = "{tmp_path / "kv"}"\nkv-disk-size = "128MiB"\n'
        config.write_text(store + settings + "".join(models))

    write("")
    with serving("--config", str(config), model="") as server:
        first = server.complete(PROMPT)
        assert server.complete(PROMPT, model="two")["model"] == "two"
        blocks = f'trunkline_store_blocks{{model="{first["model"]}"}}'
        wait_for(lambda: server.metrics()[blocks] >= WHOLE_BLOCKS // 64, "stored blocks")
        old = children(server)
        with clients(server, whole, streamed, one_connection_each, probe) as counts:
            write("max-concurrent-requests = 77\n")
            outcome = reload(server)
            assert (outcome.returncode, outcome.stdout) == (0, "reloaded\n"), outcome.stderr
            again = server.complete(PROMPT)
            assert server.complete(PROMPT, model="two")["model"] == "two"
            done = list(counts)
            wait_for(lambda: all(n > d for n, d in zip(counts, done, strict=True)), "requests")
        assert cached_tokens(again) >= WHOLE_BLOCKS
        assert again["choices"] == first["choices"]
        assert http.get(f"{server.base_url}/info").json()["max_concurrent_requests"] == 77
        wait_for(lambda: not any(map(alive, old)), "the old processes to end")
        assert server.complete("x", model="two")["model"] == "two"
        assert all(word not in server.log() for word in ("ERROR", "exited unexpectedly", "Traceback"))
