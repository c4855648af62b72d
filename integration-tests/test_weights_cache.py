"""A second start maps the weights that the first one packed, and answers with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import START_DEADLINE_S, Trunkline, serving, wait_for

pytestmark = pytest.mark.alone

REQUEST: dict[str, Any] = {"prompt": "A trunk line is", "max_tokens": 24, "temperature": 0.7, "seed": 5, "logprobs": 3}


def answer(server: Trunkline) -> Any:
    return server.complete(**REQUEST)["choices"]


def test_second_start_maps_the_weights_and_answers_with_the_same_bits(tmp_path: Path) -> None:
    with serving("--weights-cache", str(tmp_path)) as first:
        expected = answer(first)
        # A low-priority thread writes the file.
        wait_for(lambda: "packed weights cached" in first.log(), "the file of packed weights", START_DEADLINE_S)
        assert "weights packed" in first.log()
        # The first server keeps running.
        with serving(env={"TRUNKLINE_WEIGHTS_CACHE": str(tmp_path)}) as second:
            assert "weights mapped" in second.log()
            assert answer(second) == expected
            maps = Path(f"/proc/{second.shard_pid()}/maps").read_text()
            assert str(next(tmp_path.glob("*.weights"))) in maps
        assert answer(first) == expected
