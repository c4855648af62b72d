"""Acknowledged blocks survive restarts and kills, and generation continues from them with the same bits."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import START_DEADLINE_S, Trunkline, cached_tokens, flip_bit, http, serving, wait_for

BLOCK = 64
# Ten whole blocks and part of another.
PROMPT = [1000 + 7 * position % 4001 for position in range(700)]
WHOLE_BLOCKS = 640
FIELDS: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 11, "logprobs": 2, "ignore_eos": True}
# The prompt and the 23 computed tokens of its output fill one more block.
STORED_BLOCKS = 11
STORE_SIZE = "64MiB"


def store(folder: Path) -> tuple[str, ...]:
    return ("--kv-disk-path", str(folder), "--kv-disk-size", STORE_SIZE)


def ask(server: Trunkline, prompt: list[int] = PROMPT, **fields: Any) -> tuple[int, Any]:
    """Returns the number of cached tokens, and the choices, which must not depend on it."""
    answer = server.complete(prompt, **(FIELDS | fields))
    return cached_tokens(answer), answer["choices"]


def stored(server: Trunkline) -> float:
    return server.metrics()["trunkline_store_blocks"]


def files(folder: Path) -> tuple[Path, Path]:
    """Returns the files of records and of blocks of the only store in the folder."""
    (records,) = folder.glob("*/records")
    return records, records.with_name("blocks")


@pytest.fixture(scope="module")
def expected(server: Trunkline) -> Any:
    """The choices of a server without a store."""
    cached, choices = ask(server)
    assert cached == 0
    return choices


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, expected: Any) -> Path:
    """A store with the blocks of the prompt and its output, which tests copy."""
    folder = tmp_path_factory.mktemp("store")
    with serving(*store(folder)) as server:
        assert ask(server) == (0, expected)
        wait_for(lambda: stored(server) >= STORED_BLOCKS, "eleven stored blocks")
    return folder


@pytest.fixture
def filled(original: Path, tmp_path: Path) -> Path:
    """The test's own copy of the filled store."""
    return Path(shutil.copytree(original, tmp_path / "store"))


@pytest.fixture(scope="module")
def restarted(original: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trunkline, Path]]:
    """A server on a copy of the filled store, and the folder."""
    folder = Path(shutil.copytree(original, tmp_path_factory.mktemp("restarted") / "store"))
    with serving(*store(folder)) as running:
        yield running, folder


def test_history_and_its_answer_are_restored_after_a_restart(
    restarted: tuple[Trunkline, Path], server: Trunkline, expected: Any
) -> None:
    running, folder = restarted
    output = [server.tokenize(token) for token in expected[0]["logprobs"]["tokens"]]
    assert {len(ids) for ids in output} == {1}, "a token cannot be recovered from its text"
    conversation = [*PROMPT, *(ids[0] for ids in output), 5, 6]
    cached, choices = ask(running, conversation)
    assert cached == STORED_BLOCKS * BLOCK
    assert choices == ask(server, conversation)[1]
    assert running.metrics()["trunkline_restored_blocks_total"] == STORED_BLOCKS
    mode = files(folder)[1].stat().st_mode & 0o777
    assert mode == 0o600, "other users can read the blocks"


def test_kill_loses_no_acknowledged_block(tmp_path: Path, expected: Any) -> None:
    with serving(*store(tmp_path)) as server:
        assert ask(server) == (0, expected)
        for victims in (["shard"], ["router"], ["shard", "router"]):
            kill(server, victims)
            assert ask(server) == (WHOLE_BLOCKS, expected), victims


def kill(server: Trunkline, victims: list[str]) -> None:
    """Kills processes of a server and waits until their replacements are ready."""
    pids = {server.shard_pid() if victim == "shard" else server.router_pid() for victim in victims}
    # Readiness alone is not enough: the router may not have noticed the loss yet.
    connections = server.log().count("router: shard is ready")
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not pids & {*server.pids("trunkline_server"), *server.pids("trunkline-router")}, "their exit")
    wait_for(lambda: server.log().count("router: shard is ready") > connections, "a new connection", START_DEADLINE_S)
    wait_for(server.is_ready, "readiness after the kill", START_DEADLINE_S)


def test_kill_during_writes_loses_no_acknowledged_block(tmp_path: Path, server: Trunkline) -> None:
    seed = int(os.environ.get("TRUNKLINE_SEED", "1"))
    rng = random.Random(seed)
    rounds = int(os.environ.get("TRUNKLINE_SERVER_KILLS", "2"))
    answers: list[tuple[list[int], Any]] = []
    # Four kills per server and store: after six crashes in a minute the launcher gives up, and the store has room for
    # about ten prompts.
    for first in range(0, rounds, 4):
        # The killed request ends at once. If it went on, its whole prompt would be cached on the next device.
        with serving(*store(tmp_path / str(first)), "--shard-restart-timeout", "0") as stored_server:
            for number in range(first, min(first + 4, rounds)):
                prompt = [1 + (number * 977 + 13 * at) % 40_000 for at in range(550)]
                before, wanted = stored(stored_server), rng.randint(1, 6)
                load = threading.Thread(target=send_and_ignore, args=(stored_server, prompt))
                load.start()
                # The first blocks are written while the rest of the prompt is computed.
                written = wait_for_blocks(stored_server, before, wanted)
                os.kill(stored_server.shard_pid(), signal.SIGKILL)
                load.join()
                wait_for(stored_server.is_ready, "a new shard", START_DEADLINE_S)
                cached, choices = ask(stored_server, prompt)
                print(f"round {number}: {written} blocks acknowledged, {cached} tokens cached")
                assert cached % BLOCK == 0, f"seed {seed}: a partial block was restored"
                assert cached >= written * BLOCK, f"seed {seed}: acknowledged blocks were lost"
                answers.append((prompt, choices))
    for number, (prompt, choices) in enumerate(answers):
        assert ask(server, prompt)[1] == choices, f"seed {seed}: the answer of round {number} differs"


def wait_for_blocks(server: Trunkline, before: float, wanted: int) -> float:
    """Waits until `wanted` more blocks are acknowledged than `before`, and returns how many more there are."""
    wait_for(lambda: stored(server) - before >= wanted, f"{wanted} stored blocks", START_DEADLINE_S)
    return stored(server) - before


def send_and_ignore(server: Trunkline, prompt: list[int]) -> None:
    """Sends a request and ignores its answer or failure."""
    with contextlib.suppress(httpx.HTTPError):
        http.post(f"{server.base_url}/v1/completions", json={"prompt": prompt, "max_tokens": 200}, timeout=60)


def test_restore_stops_at_a_block_with_a_flipped_bit(filled: Path, expected: Any) -> None:
    records, blocks = files(filled)
    slot_bytes = blocks.stat().st_size // num_slots(records)
    # The first prompt fills the slots in order.
    flip_bit(blocks, 4 * slot_bytes + 12_345)
    with serving(*store(filled)) as server:
        assert ask(server) == (4 * BLOCK, expected)
        assert server.metrics()["trunkline_restore_failures_total"] == 1
        wait_for(lambda: "damaged" in server.log(), "a line in the log")
        # The blocks that had to be computed are stored again.
        wait_for(lambda: stored(server) >= STORED_BLOCKS, "eleven stored blocks")
    with serving(*store(filled)) as again:
        assert ask(again) == (WHOLE_BLOCKS, expected)


def num_slots(records: Path) -> int:
    # The header in store/src/layout.rs has magic, version, block size and number of slots.
    return int.from_bytes(records.read_bytes()[16:20], "little")


# store/tests covers every kind of damage. Here the log line passes through all processes.
def test_damaged_store_is_logged_and_gives_a_cold_start(filled: Path, expected: Any) -> None:
    flip_bit(files(filled)[0], 9)
    with serving(*store(filled)) as server:
        assert "KV block store starts empty: " in server.log()
        assert ask(server) == (0, expected)


def test_two_servers_share_an_object_store(tmp_path: Path, expected: Any) -> None:
    shared = tmp_path / "objects"
    flags = [(*store(tmp_path / name), "--kv-object-store", f"file://{shared}") for name in ("one", "two")]
    with serving(*flags[0]) as one, serving(*flags[1]) as two:
        assert ask(one) == (0, expected)
        uploaded = "trunkline_object_uploaded_blocks_total"
        wait_for(lambda: one.metrics()[uploaded] >= WHOLE_BLOCKS // BLOCK, "ten objects")
        assert ask(two) == (WHOLE_BLOCKS, expected)
        metrics = two.metrics()
        assert metrics["trunkline_object_downloaded_blocks_total"] == WHOLE_BLOCKS // BLOCK
        assert metrics["trunkline_object_failures_total"] == 0
