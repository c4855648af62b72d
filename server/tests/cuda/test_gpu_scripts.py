"""`make gpu-check`'s measurements run, on shapes small enough for the interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PATHS = [str(ROOT / "benchmark"), str(ROOT / "server")]


def test_every_figure_is_measured_and_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpu", "--tiny", "--parts", "steps", "requests", "--output", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out/gpu.json").read_text())
    assert set(results["limits"]) == {"bytes_per_s", "operations_per_s"}
    figures = results["models"]["tiny"]
    assert [row["batch"] for row in figures["decode"]] == [1, 2], figures
    assert all(row["tokens_per_s"] > 0 for row in figures["decode"] + figures["prefill"])
    assert figures["requests"].startswith("not measured: ")
    text = (tmp_path / "out/gpu.md").read_text()
    assert "### prefill" in text
    assert (tmp_path / "out/tiny-decode.svg").read_text().startswith("<svg")


def test_percentiles_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PATHS[0])
    from gpu.report import plot, table
    from gpu.requests import Timing, percentiles, prompt

    assert percentiles([0.001 * number for number in range(1, 102)]) == pytest.approx({"p50": 51.0, "p99": 100.0})
    assert Timing([0.5, 0.75, 1.5]).gaps == [0.25, 0.75]
    assert len(set(prompt(3, 50, 1000))) > 30
    assert table([{"a": 1, "b": {"p50": 2.0}}])[0] == "| a | b p50 |"
    assert plot("m", "batch", "tokens/s", {"x": [(1, 2.0), (8, 9.0)]}).count("<polyline") == 1
