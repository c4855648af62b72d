"""`--kv-memory`: the same answers with K and V that are mostly in a file, whatever happens to the file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from harness import START_DEADLINE_S, Trunkline, embedded_gguf, flip_bit, serving

pytestmark = pytest.mark.alone

MODEL = str(embedded_gguf())
POOL = ("--max-batch-total-tokens", "2048")
# Room for 5 of the 60 parts of such a pool, of which a step needs one or two of each of the 30 layers.
MEMORY = ("--kv-memory", "2MiB")
STORY = "A trunk line is a circuit between switches, and each of them has a name. " * 12
REQUESTS: list[dict[str, Any]] = [
    {"prompt": STORY + end, "max_tokens": 10, "temperature": 0.7, "seed": 5, "logprobs": 3}
    for end in ("The first one", "The last one", "Nobody")
]


def answers(server: Trunkline) -> list[Any]:
    """Returns the choices of all requests, which run at the same time. Later ones find what the first has computed."""
    server.complete(**REQUESTS[0])
    with ThreadPoolExecutor() as pool:
        return [answer["choices"] for answer in pool.map(lambda request: server.complete(**request), REQUESTS)]


def nameless_file(pid: int) -> Path:
    """Returns a path of the file in which a shard keeps what exceeds the memory."""
    (file,) = (fd for fd in Path(f"/proc/{pid}/fd").iterdir() if "/#" in str(fd.readlink()))
    return file


def test_a_pool_with_a_file_gives_the_same_answers() -> None:
    with serving(*POOL, model=MODEL) as whole:
        expected = answers(whole)
    with serving(*POOL, *MEMORY, model=MODEL) as server:
        assert "KV cache exceeds `--kv-memory`" in server.log()
        assert answers(server) == expected
        file = nameless_file(server.shard_pid())
        offsets = range(1000, file.stat().st_size, 64 << 10)
        for offset in offsets:
            flip_bit(file, offset)
        # The shard notices before it computes with such bytes, forgets K and V, and computes them anew.
        assert answers(server) == expected
        assert "has other bytes than were written; hint: check the disk" in server.log()
        assert server.log().count("restarted process=shard") == 1


def test_what_cannot_be_is_refused_at_the_start() -> None:
    for flags, text in (
        (("--kv-memory", "1MiB", "--max-batch-total-tokens", "65536"), "hint: raise it to at least"),
        ((*MEMORY, "--kv-disk-path", "."), "`--kv-memory` cannot be used with `--kv-disk-path`"),
    ):
        server = Trunkline(*flags, model=MODEL)
        assert server.process.wait(START_DEADLINE_S) == 2
        assert text in server.log()
        server.close()
