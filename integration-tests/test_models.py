"""Several models behind one server, with real shards: swaps, kills, unloads, lost files and a flood."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import (
    EMBEDDED,
    START_DEADLINE_S,
    Trunkline,
    cached_tokens,
    embedded_gguf,
    http,
    serving,
    wait_for,
    write_shallow,
)
from test_replicas import Stream

# "two" and "three" have so many layers, and fit into memory together. "whole" is the embedded model, which fits only
# alone. "lost" is for the test of a file that is lost.
LIMIT_BYTES = 300_000_000
POOL = ("--max-batch-total-tokens", "4096")
PROMPT = [1000 + 7 * position % 4001 for position in range(700)]
WHOLE_BLOCKS = 640
# A stream that goes on for seconds on a shallow model.
LONG: dict[str, Any] = {"prompt": "The sea is", "temperature": 0, "ignore_eos": True, "stream": True}
# The launcher gives a model up whose shard crashes more often than this within a minute.
MAX_CRASHES = 6
# Keys and values of a token in a layer, in bytes as int8: three heads of 64 elements.
TOKEN_BYTES = 2 * 3 * 64
NUM_FLOODED, NUM_FLOODING = 20, 1000


class MemoryWatch:
    """Samples the memory of all shard processes of a server, including a spare one, until it is closed.

    Pages that processes share are counted once.
    """

    def __init__(self, server: Trunkline) -> None:
        self.peak_bytes = 0
        self._server = server
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._closed.wait(0.05):
            self.peak_bytes = max(self.peak_bytes, sum(map(proportional_bytes, self._server.pids("trunkline_server"))))

    def __enter__(self) -> MemoryWatch:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._closed.set()
        self._thread.join()


def proportional_bytes(pid: int) -> int:
    """Returns the memory of a process, and its part of what it shares; 0 if it has ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in rollup.splitlines() if line.startswith("Pss:"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for num_layers, name in ((2, "two"), (3, "three"), (4, "lost")):
        write_shallow(made / f"{name}.gguf", num_layers)
    (made / "whole.gguf").symlink_to(embedded_gguf())
    return made


@pytest.fixture(scope="module")
def models(folder: Path) -> Iterator[Trunkline]:
    """A server whose shards never take more memory than the limit, whatever the tests do."""
    others = [str(folder / f"{name}.gguf") for name in ("three", "whole", "lost")]
    store = ("--kv-disk-path", str(folder / "store"), "--kv-disk-size", "64MiB")
    flags = ("--models-memory", str(LIMIT_BYTES), *POOL, *store)
    with serving(*others, *flags, model=str(folder / "two.gguf")) as server, MemoryWatch(server) as memory:
        yield server
    print(f"peak of all shards: {memory.peak_bytes / 1e6:.0f} MB of {LIMIT_BYTES / 1e6:.0f} MB")
    assert 0 < memory.peak_bytes <= LIMIT_BYTES


def listed(server: Trunkline) -> dict[str, dict[str, Any]]:
    models = http.get(f"{server.base_url}/v1/models").json()["data"]
    return {model["id"]: model["status"] for model in models}


def states(server: Trunkline) -> dict[str, str]:
    return {name: status["value"] for name, status in listed(server).items()}


def manage(server: Trunkline, model: str, action: str) -> httpx.Response:
    return http.post(f"{server.base_url}/v1/models/{model}/{action}", timeout=60)


def shard_of(server: Trunkline, model: str) -> int:
    """Returns the process of a model's shard, as the log has it: the command line of a spare never names its model."""
    number = list(states(server)).index(model)
    name = f"shard-m{number} " if number else "shard "
    started = [line for line in server.log().splitlines() if f"process={name}pid=" in line]
    return int(started[-1].rpartition("pid=")[2].split()[0])


def ask(server: Trunkline, model: str, prompt: str | list[int] = "The sea is", **fields: Any) -> dict[str, Any]:
    return server.complete(prompt, model=model, logprobs=2, **fields)


def test_models_that_do_not_fit_together_answer_as_each_does_alone(models: Trunkline, folder: Path) -> None:
    names = ("two", "whole", "three")
    alone = {}
    for name in names:
        with serving(*POOL, model=str(folder / f"{name}.gguf")) as server:
            alone[name] = ask(server, name)["choices"]
    assert len({str(choices) for choices in alone.values()}) == len(names)
    loaded = set[tuple[str, ...]]()
    for name in names * 2:
        assert ask(models, name)["choices"] == alone[name], name
        assert proportional_bytes(shard_of(models, name)) <= listed(models)[name]["memory_bytes"], name
        loaded.add(tuple(sorted(name for name, state in states(models).items() if state == "loaded")))
    assert ("whole",) in loaded and ("three", "two") in loaded, loaded


def test_a_chat_that_returns_finds_its_prefix_on_disk(models: Trunkline) -> None:
    first = ask(models, "two", PROMPT)
    wait_for(lambda: stored_blocks(models, "two") >= WHOLE_BLOCKS // 64, "the stored blocks")
    ask(models, "whole")
    assert states(models)["two"] == "unloaded"
    again = ask(models, "two", PROMPT)
    assert (cached_tokens(first), cached_tokens(again)) == (0, WHOLE_BLOCKS)
    assert again["choices"] == first["choices"]
    assert cached_tokens(ask(models, "three", PROMPT)) == 0, "the blocks of another model"


def stored_blocks(server: Trunkline, model: str) -> float:
    return server.metrics()[f'trunkline_store_blocks{{model="{model}"}}']


def test_a_killed_shard_leaves_the_streams_of_the_other_model_alone(models: Trunkline) -> None:
    two, three = (LONG | {"model": name, "max_tokens": 600} for name in ("two", "three"))

    def run(kill: bool) -> list[Stream]:
        for name in ("two", "three"):
            ask(models, name)
        streams = [Stream(models, body, path="/v1/completions") for body in (two, three)]
        if kill:
            wait_for(lambda: all(stream.num_events > 20 for stream in streams), "the streams")
            os.kill(shard_of(models, "two"), signal.SIGKILL)
        for stream in streams:
            stream.thread.join()
        assert [stream.error for stream in streams] == [None, None]
        return streams

    expected, streams = run(kill=False), run(kill=True)
    assert [stream.text() for stream in streams] == [stream.text() for stream in expected]
    pauses = [stream.longest_pause_s for stream in (expected[1], streams[1], streams[0])]
    print("longest pauses: {:.3f} s without a kill, {:.3f} s beside it, {:.3f} s of the killed one".format(*pauses))
    assert models.is_ready()


def test_a_model_that_crashes_again_and_again_is_given_up_alone(models: Trunkline) -> None:
    ask(models, "two")
    ask(models, "three")
    crashed = threading.Event()

    def ask_meanwhile() -> int:
        num_answers = 0
        while not crashed.is_set():
            ask(models, "two")
            num_answers += 1
        return num_answers

    with ThreadPoolExecutor(1) as pool:
        meanwhile = pool.submit(ask_meanwhile)
        killed = set[int]()
        end = time.monotonic() + START_DEADLINE_S
        while states(models)["three"] != "failed" and time.monotonic() < end:
            # The router must have greeted the shard: one that was never ready is given up at once.
            if (shard := shard_of(models, "three")) not in killed and is_greeted(models, "three"):
                os.kill(shard, signal.SIGKILL)
                killed.add(shard)
            time.sleep(0.02)
        crashed.set()
        assert meanwhile.result() > 0
    assert len(killed) <= MAX_CRASHES
    refused = http.post(f"{models.base_url}/v1/completions", json={"model": "three", "prompt": "x"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "model_failed"), refused.text
    assert "crashed" in refused.json()["error"]["message"]
    pause_s = int(refused.headers["retry-after"])
    print(f"given up after {len(killed)} kills, for {pause_s} s")
    assert states(models) == {"two": "loaded", "three": "failed", "whole": "unloaded", "lost": "unloaded"}
    wait_for(lambda: ask_if_loaded(models, "three"), "the model after its back-off", pause_s + 10)


def is_greeted(server: Trunkline, model: str) -> bool:
    return server.metrics().get(f'trunkline_lane_ready{{model="{model}",lane="0"}}') == 1


def ask_if_loaded(server: Trunkline, model: str) -> bool:
    answer = http.post(f"{server.base_url}/v1/completions", json={"model": model, "prompt": "x"}, timeout=60)
    assert answer.status_code in (200, 503), answer.text
    return answer.status_code == 200


def test_an_unload_lets_a_stream_end(models: Trunkline) -> None:
    body = LONG | {"model": "two", "max_tokens": 400}
    expected = Stream(models, body, path="/v1/completions")
    expected.thread.join()
    stream = Stream(models, body, path="/v1/completions")
    wait_for(lambda: stream.num_events > 20, "the stream")
    with ThreadPoolExecutor(1) as pool:
        unload = pool.submit(manage, models, "two", "unload")
        wait_for(lambda: states(models)["two"] == "unloading", "the unload to begin")
        assert stream.thread.is_alive()
        stream.thread.join()
        assert (stream.error, stream.text()) == (None, expected.text())
        assert unload.result().status_code == 200
    assert states(models)["two"] == "unloaded"
    ask(models, "two")


def test_a_lost_file_is_named_and_loaded_once_it_is_back(models: Trunkline, folder: Path) -> None:
    path, away = folder / "lost.gguf", folder / "away"
    path.rename(away)

    def ask_for_it() -> None:
        answer = http.post(f"{models.base_url}/v1/completions", json={"model": "lost", "prompt": "x"}, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_failed"), answer.text
        message = answer.json()["error"]["message"]
        assert "`lost`" in message and str(path) in message, message
        assert int(answer.headers["retry-after"]) >= 1
        assert states(models)["lost"] == "failed"

    for _ in range(2):
        ask_for_it()
    num_tries = models.log().count("cannot open a model")
    for name in ("two", "three"):
        ask(models, name)

    def is_tried_again() -> bool:
        ask_for_it()
        return models.log().count("cannot open a model") > num_tries

    wait_for(is_tried_again, "the end of the back-off")
    assert states(models) == {"two": "loaded", "three": "loaded", "whole": "unloaded", "lost": "failed"}
    away.rename(path)
    wait_for(lambda: ask_if_loaded(models, "lost"), "the model after its back-off")


def test_a_stream_tells_that_its_model_is_loading(models: Trunkline) -> None:
    manage(models, "three", "unload")
    body = LONG | {"model": "three", "max_tokens": 4}
    with http.stream("POST", f"{models.base_url}/v1/completions", json=body, timeout=60) as answer:
        lines = [line for line in answer.iter_lines() if line]
    assert lines[0].startswith(": model three is "), lines
    assert any(line == ": model three is loading, for 0 s" for line in lines), lines
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(event["choices"][0]["text"] for event in events if event["choices"])
    assert text == ask(models, "three", max_tokens=4)["choices"][0]["text"]
    assert lines[-1] == "data: [DONE]"


def test_a_model_shows_what_its_shard_takes_once_it_was_loaded(folder: Path) -> None:
    num_tokens = 65_536
    flags = ("--max-batch-total-tokens", str(num_tokens), "--kv-cache-dtype", "int4")
    with serving(str(folder / "three.gguf"), *flags, model=str(folder / "two.gguf")) as server:
        # The estimate knows the flag.
        expected = listed(server)["three"]["memory_bytes"]
        ask(server, "three")
        measured = listed(server)["three"]["memory_bytes"]
        least_bytes = num_tokens * 3 * TOKEN_BYTES // 2
        assert max(least_bytes, proportional_bytes(shard_of(server, "three"))) <= measured
        assert expected == pytest.approx(measured, rel=0.1)
        manage(server, "three", "unload")
        assert listed(server)["three"]["memory_bytes"] == measured


def test_a_flood_for_many_models_is_answered_or_refused(folder: Path, tmp_path: Path) -> None:
    names = [f"flooded-{number}" for number in range(NUM_FLOODED)]
    # They are one file, so its packed weights serve all.
    tables = [f'[[model]]\nmodel-id = "{folder / "two.gguf"}"\nserved-model-name = "{name}"\n' for name in names]
    config = tmp_path / "models.toml"
    config.write_text("".join(tables))
    limit_bytes = 1_200_000_000
    flags = ("--models-memory", str(limit_bytes), "--max-batch-total-tokens", "1024")
    flags += ("--max-concurrent-requests", "600", "--config", str(config))
    with serving(*flags, model=EMBEDDED) as server, MemoryWatch(server) as memory:
        begin = time.monotonic()
        counts = asyncio.run(flood(server, names))
        print(f"{counts} in {time.monotonic() - begin:.1f} s")
        # All models are the same, so there is one text.
        assert sum(status == 200 for status, _ in counts) == 1, counts
        assert {status for status, _ in counts} <= {200, 429}, counts
        wait_for(lambda: is_idle(server), "places and metrics to be idle")
        loads = server.log().count(" loading a model")
        print(f"{loads} loads, peak {memory.peak_bytes / 1e6:.0f} MB of {limit_bytes / 1e6:.0f} MB")
    assert 0 < memory.peak_bytes <= limit_bytes


async def flood(server: Trunkline, names: list[str]) -> Counter[tuple[int, str]]:
    """Sends all requests at once. Returns how many had each status, and each text or code of an error."""

    async def post(number: int) -> tuple[int, str]:
        body = {"model": names[number % len(names)], "prompt": "x", "max_tokens": 2, "temperature": 0}
        content = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        head += "Content-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        received, _, answer = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        status, said = int(received.split()[1]), json.loads(answer)
        return status, said["choices"][0]["text"] if status == 200 else said["error"]["code"]

    return Counter(await asyncio.wait_for(asyncio.gather(*map(post, range(NUM_FLOODING))), 100))


def is_idle(server: Trunkline) -> bool:
    metrics = server.metrics()
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "trunkline_kv_blocks_held")
    held = {name: value for name, value in metrics.items() if name.startswith(names)}
    assert len(held) >= len(names) * NUM_FLOODED, held
    return not any(held.values())
