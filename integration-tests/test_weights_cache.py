"""A second start maps the weights that the first one packed, and answers with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harness import START_DEADLINE_S, Trunkline, flip_bit, http, wait_for

pytestmark = pytest.mark.alone

REQUEST = {"prompt": "A trunk line is", "max_tokens": 24, "temperature": 0.7, "seed": 5, "logprobs": 3}


def answer(server: Trunkline) -> Any:
    response = http.post(f"{server.base_url}/v1/completions", json=REQUEST, timeout=60)
    assert response.status_code == 200, response.text
    return response.json()["choices"]


def test_second_start_maps_the_weights_and_answers_with_the_same_bits(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    first = Trunkline("--weights-cache", str(folder)).wait_ready()
    try:
        expected = answer(first)
        # A low-priority thread writes the file.
        wait_for(lambda: "packed weights cached" in first.log(), "the file of packed weights", START_DEADLINE_S)
        assert "weights packed" in first.log()
        # The first server keeps running.
        second = Trunkline(env={"TRUNKLINE_WEIGHTS_CACHE": str(folder)}).wait_ready()
        try:
            assert "weights mapped" in second.log()
            assert answer(second) == expected
            maps = Path(f"/proc/{second.shard_pid()}/maps").read_text()
            assert str(next(folder.glob("*.weights"))) in maps
        finally:
            second.stop()
        assert answer(first) == expected
    finally:
        first.stop()
    # A damaged file gives a warning and the same answers.
    (file,) = folder.glob("*.weights")
    flip_bit(file, file.stat().st_size // 2)
    third = Trunkline("--weights-cache", str(folder)).wait_ready()
    try:
        assert "WARN shard: ignoring the cache of packed weights" in third.log()
        assert answer(third) == expected
    finally:
        third.stop()
