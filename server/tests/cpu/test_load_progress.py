"""Reports of how much of a model is loaded."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from tests.cpu.tiny_backend import build_tiny
from tests.models.tiny import TinyModels
from trunkline_server.backends.cpu import build
from trunkline_server.backends.load_progress import LoadProgress
from trunkline_server.weights.checkpoint import open_checkpoint


def told(clock: Iterable[float], parts: list[float], capfd: pytest.CaptureFixture[str]) -> list[int]:
    """Returns the percentages that are reported of these parts. clock: the times of the start and of each part."""
    times = iter(clock)
    progress = LoadProgress(lambda: next(times))
    for part in parts:
        progress(part)
    return [json.loads(line)["loading"]["percent"] for line in capfd.readouterr().out.splitlines()]


def test_a_slow_load_is_reported_twice_a_second(capfd: pytest.CaptureFixture[str]) -> None:
    clock = [100.0, 100.4, 100.5, 100.9, 101.0, 101.6, 102.0]
    assert told(clock, [0.05, 0.299, 0.4, 0.5, 0.9, 1.0], capfd) == [29, 50, 90]


def test_a_quick_load_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert told([7.0, 7.1, 7.49], [0.5, 1.0], capfd) == []


def test_packed_weights_are_counted(tiny_model: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "PROGRESS_INTERVAL_S", 1e-9)
    parts = list[float]()
    build_tiny(open_checkpoint(tiny_model("llama2").folder), on_progress=parts.append)
    assert len(parts) > 1 and parts == sorted(parts) and 0 < parts[0] < 0.9 < parts[-1] <= 1
