"""The KV cache outlives restarts and kills: what was acknowledged is found again, and goes on with the same bits."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from harness import Trunkline, embedded_gguf, serving, wait_for

BLOCK = 64
# 700 tokens: ten whole blocks and a part of one.
PROMPT = [1000 + 7 * position % 4001 for position in range(700)]
WHOLE_BLOCKS = 640
FIELDS: dict[str, Any] = {"max_tokens": 24, "temperature": 0.8, "seed": 11, "logprobs": 2, "ignore_eos": True}


def store(folder: Path) -> tuple[str, ...]:
    return ("--kv-disk-path", str(folder), "--kv-disk-size", "256MiB")


def ask(server: Trunkline, prompt: list[int] = PROMPT, **fields: Any) -> tuple[int, Any]:
    """Cached tokens, and everything that must not depend on them."""
    answer = server.complete(prompt, **(FIELDS | fields))
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"]


def stored(server: Trunkline) -> float:
    return server.metrics()["trunkline_store_blocks"]


def files(folder: Path) -> tuple[Path, Path]:
    """Records and blocks of the one store in the folder."""
    (records,) = folder.glob("*/records")
    return records, records.with_name("blocks")


@pytest.fixture(scope="module")
def expected(server: Trunkline) -> Any:
    """What a server without a store answers."""
    cached, choices = ask(server)
    assert cached == 0
    return choices


def test_a_history_is_there_after_a_restart(tmp_path: Path, expected: Any) -> None:
    with serving(*store(tmp_path)) as first:
        assert ask(first) == (0, expected)
        wait_for(lambda: stored(first) >= WHOLE_BLOCKS // BLOCK, "ten stored blocks")
    with serving(*store(tmp_path)) as second:
        assert ask(second) == (WHOLE_BLOCKS, expected)
        metrics = second.metrics()
        assert metrics["trunkline_restored_blocks_total"] == WHOLE_BLOCKS // BLOCK
        # Generated tokens are history too: the conversation goes on from its answer.
        told = [logprob["token"] for logprob in _logprobs(expected)]
        assert len(told) == FIELDS["max_tokens"]
    mode = files(tmp_path)[1].stat().st_mode & 0o777
    assert mode == 0o600, "others may not read what was said"


def _logprobs(choices: Any) -> list[dict[str, Any]]:
    logprobs = choices[0]["logprobs"]
    return [{"token": token} for token in logprobs["tokens"]]


@pytest.mark.parametrize("victim", ["shard", "router", "both"])
def test_who_is_killed_loses_nothing_that_was_acknowledged(tmp_path: Path, expected: Any, victim: str) -> None:
    with serving(*store(tmp_path)) as server:
        assert ask(server) == (0, expected)
        pids = {
            "shard": [server.shard_pid()],
            "router": [server.router_pid()],
            "both": [server.shard_pid(), server.router_pid()],
        }[victim]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not set(pids) & {*server.pids("trunkline_server"), *server.pids("trunkline-router")}, "death")
        wait_for(lambda: _is_ready(server), "a new start")
        assert ask(server) == (WHOLE_BLOCKS, expected)


def test_a_kill_in_mid_write_is_a_miss_or_a_hit_and_never_wrong(tmp_path: Path, expected: Any) -> None:
    seed = int(os.environ.get("TRUNKLINE_SEED", "1"))
    rng = random.Random(seed)
    rounds = int(os.environ.get("TRUNKLINE_SERVER_KILLS", "4"))
    texts = {round_: [1 + (round_ * 977 + 13 * at) % 40_000 for at in range(900)] for round_ in range(rounds)}
    alone: dict[int, Any] = {}
    with serving(*store(tmp_path)) as server:
        for number, prompt in texts.items():
            # Killed while the others prefill and write; who was answered before has all blocks acknowledged.
            load = threading.Thread(target=_drop, args=(server, prompt))
            load.start()
            threading.Event().wait(rng.uniform(0.02, 0.4))
            os.kill(server.shard_pid(), signal.SIGKILL)
            load.join()
            wait_for(lambda: _is_ready(server), "a new shard")
            cached, choices = ask(server, prompt)
            assert cached % BLOCK == 0, f"seed {seed}: whole blocks"
            alone[number] = choices
        assert ask(server) == (0, expected)
    with serving() as cold:
        for number, prompt in texts.items():
            assert ask(cold, prompt)[1] == alone[number], f"seed {seed}: text {number}"


def _drop(server: Trunkline, prompt: list[int]) -> None:
    """A request whose answer does not matter."""
    try:
        httpx.post(f"{server.base_url}/v1/completions", json={"prompt": prompt, "max_tokens": 200}, timeout=60)
    except httpx.HTTPError:
        return


def _is_ready(server: Trunkline) -> bool:
    try:
        return httpx.get(f"{server.base_url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as raw:
        raw.seek(offset)
        byte = raw.read(1)[0]
        raw.seek(offset)
        raw.write(bytes([byte ^ 4]))


@pytest.fixture
def filled(tmp_path: Path, expected: Any) -> Iterator[Path]:
    """A folder with the prompt's blocks."""
    with serving(*store(tmp_path)) as server:
        assert ask(server) == (0, expected)
        wait_for(lambda: stored(server) >= WHOLE_BLOCKS // BLOCK, "ten stored blocks")
    yield tmp_path


def test_a_flipped_bit_is_a_miss_from_there_on(filled: Path, expected: Any) -> None:
    records, blocks = files(filled)
    slot_bytes = blocks.stat().st_size // _num_slots(records)
    # The first prompt fills slots from the first on.
    flip(blocks, 4 * slot_bytes + 12_345)
    with serving(*store(filled)) as server:
        assert ask(server) == (4 * BLOCK, expected)
        assert server.metrics()["trunkline_restore_failures_total"] == 1
        wait_for(lambda: "damaged" in server.log(), "a line in the log")
        # What was computed instead is stored again.
        wait_for(lambda: stored(server) >= WHOLE_BLOCKS // BLOCK, "ten stored blocks")
    with serving(*store(filled)) as again:
        assert ask(again) == (WHOLE_BLOCKS, expected)


def _num_slots(records: Path) -> int:
    # Layout in store/src/layout.rs: magic, version, block size, slots.
    return int.from_bytes(records.read_bytes()[16:20], "little")


@pytest.mark.parametrize("damage", ["header", "records cut", "blocks cut", "not a store"])
def test_a_damaged_store_is_a_cold_start_with_a_line_in_the_log(filled: Path, expected: Any, damage: str) -> None:
    records, blocks = files(filled)
    if damage == "header":
        flip(records, 9)
    elif damage == "records cut":
        os.truncate(records, 4096 + 100)
    elif damage == "blocks cut":
        os.truncate(blocks, 0)
    else:
        records.write_bytes(os.urandom(10_000))
    with serving(*store(filled)) as server:
        assert ask(server) == (0, expected)
        assert "store" in server.log()


def test_another_cache_dtype_is_another_store(filled: Path, expected: Any) -> None:
    with serving(*store(filled), "--kv-cache-dtype", "f16") as server:
        cached, _ = ask(server)
        assert cached == 0
    assert len(list(filled.glob("*/records"))) == 2
    with serving(*store(filled)) as server:
        assert ask(server) == (WHOLE_BLOCKS, expected)


def test_two_servers_do_not_share_a_folder(filled: Path) -> None:
    with serving(*store(filled)) as first:
        second = Trunkline(*store(filled), model=str(embedded_gguf()))
        try:
            # It serves without a store, or says that it cannot: never two writers.
            wait_for(lambda: "used by another process" in second.log(), "a clear message")
        finally:
            second.stop()
        assert ask(first)[0] == WHOLE_BLOCKS


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path: Path, expected: Any) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with serving(*store(blocked / "below")) as server:
        assert ask(server) == (0, expected)
        assert "--kv-disk-path" in server.log()
        assert stored(server) == 0
