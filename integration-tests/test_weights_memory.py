"""`--weights-memory`: the same answers from less memory, and errors instead of wrong answers if the disk misbehaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import START_DEADLINE_S, Trunkline, embedded_gguf, flip_bit, http, peak_bytes, serving, wait_for

pytestmark = pytest.mark.alone

MODEL = str(embedded_gguf())
POOL = ("--max-batch-total-tokens", "2048", "--max-batch-prefill-tokens", "32")
REQUEST: dict[str, Any] = {"prompt": "A trunk line is", "max_tokens": 12, "temperature": 0.7, "seed": 5, "logprobs": 3}
# The embedding stays, and with it about a seventh of the rest.
MEMORY_MIB = 48
PIECE_BYTES = 2 << 20


def answer(server: Trunkline) -> Any:
    return server.complete(**REQUEST)["choices"]


def test_streamed_weights_give_the_same_answers_from_less_memory(tmp_path: Path) -> None:
    limited = (*POOL, "--weights-cache", str(tmp_path / "new"), "--weights-memory", f"{MEMORY_MIB}MiB")
    with serving(*POOL, "--weights-cache", "off", model=MODEL) as whole:
        expected, most = answer(whole), peak_bytes(whole.shard_pid())
    with serving(*limited, model=MODEL) as first:
        assert "are read from disk in every step" in first.log()
        assert answer(first) == expected
        wait_for(lambda: "packed weights cached" in first.log(), "the file of packed weights", START_DEADLINE_S)
    (file,) = (tmp_path / "new").glob("*.weights")
    with serving(*limited, model=MODEL) as second:
        assert answer(second) == expected
        saved = file.stat().st_size - (MEMORY_MIB << 20)
        assert peak_bytes(second.shard_pid()) < most - saved * 0.8
        pieces = range(PIECE_BYTES * 4, file.stat().st_size, PIECE_BYTES)
        for offset in pieces:
            flip_bit(file, offset)
        failed = http.post(f"{second.base_url}/v1/completions", json=REQUEST)
        assert failed.status_code == 502, failed.text
        assert "weights cannot be read from the disk" in failed.text
        for offset in pieces:
            flip_bit(file, offset)
        assert answer(second) == expected


def test_too_little_memory_for_the_weights_says_how_much_is_needed(tmp_path: Path) -> None:
    for flags, text in (
        (("--weights-cache", str(tmp_path), "--weights-memory", "8MiB"), "hint: raise it to at least"),
        (("--weights-cache", "off", "--weights-memory", "64MiB"), "name a folder on a fast disk"),
    ):
        server = Trunkline(*POOL, *flags, model=MODEL)
        assert server.process.wait(START_DEADLINE_S) == 2
        assert text in server.log()
        server.close()
