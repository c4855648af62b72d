"""`make gpu-check`'s measurements run, on shapes small enough for the interpreter."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PATHS = [str(ROOT / "benchmark"), str(ROOT / "server")]


def test_every_figure_is_measured_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    monkeypatch.syspath_prepend(PATHS[0])
    from gpu.__main__ import _steps
    from gpu.report import write
    from gpu.shapes import SHAPES, write_model

    path = write_model(SHAPES["tiny"], tmp_path / "model", device)
    figures = _steps(argparse.Namespace(tiny=True, model="tiny", path=path), device)
    limits = figures.pop("limits")
    assert set(limits) == {"bytes_per_s", "operations_per_s"}
    assert [row["batch"] for row in figures["decode"]] == [1, 2]
    assert all(row["tokens_per_s"] > 0 for row in figures["decode"] + figures["prefill"])
    write({"device": device, "limits": limits, "models": {"tiny": figures}}, tmp_path / "out")
    assert "### prefill" in (tmp_path / "out/gpu.md").read_text()
    assert (tmp_path / "out/tiny-decode.svg").read_text().startswith("<svg")


def test_parts_run_in_processes_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpu", "--tiny", "--parts", "requests", "--output", str(tmp_path / "out")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out/gpu.json").read_text())
    assert results["models"]["tiny"]["requests"].startswith("not measured: ")


def test_what_failed_or_differs_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PATHS[0])
    from gpu.report import problems

    parts = {"requests": [{"same_alone": False, "requests": 64}], "steps": "failed: no memory", "history": []}
    found = problems({"models": {"m": parts, "n": {"requests": "not measured: no GPU"}}})
    assert found == ["m: requests: `same_alone` is not", "m: steps failed: no memory"]


def test_percentiles_and_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PATHS[0])
    from gpu.report import plot, table
    from gpu.requests import Timing, percentiles, prompt

    assert percentiles([0.001 * number for number in range(1, 102)]) == pytest.approx({"p50": 51.0, "p99": 100.0})
    assert Timing([0.5, 0.75, 1.5]).gaps == [0.25, 0.75]
    assert len(set(prompt(3, 50, 1000))) > 30
    assert table([{"a": 1, "b": {"p50": 2.0}}])[0] == "| a | b p50 |"
    assert plot("m", "batch", "tokens/s", {"x": [(1, 2.0), (8, 9.0)]}).count("<polyline") == 1
