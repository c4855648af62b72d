"""`make gpu-check`: what it says about races and about the library's products."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from gpu import assumptions, races, report
from gpu.lines import Lines, of_kind, read_lines
from trunkline_server.backends.cuda.weights import DenseWeight

CLEAN = f"{races.LAUNCHED}\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"
# Says what the tool says, if its arguments end with a program.
TOOL = """#!/bin/sh
case "$*" in *"--kernel-name kns=decode_kernel --launch-count 1 "*"-m gpu.races launch") echo "%s" ;; esac
"""


def test_the_launch_that_is_examined_computes(capsys: pytest.CaptureFixture[str]) -> None:
    races.launch("cuda" if torch.cuda.is_available() else "cpu")
    assert races.LAUNCHED in capsys.readouterr().out


@pytest.mark.parametrize(
    ("said", "is_clean"),
    [
        (CLEAN, True),
        (CLEAN.replace("0 hazards", "1 hazard"), False),
        (CLEAN.replace("0 hazards", "20 hazards"), False),
        (CLEAN.replace(races.LAUNCHED, "Segmentation fault"), False),
        (races.LAUNCHED, False),
    ],
)
def test_races_are_reported(said: str, is_clean: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / races.TOOL).write_text(TOOL % said)
    (tmp_path / races.TOOL).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    lines = Lines(tmp_path / report.RESULTS, "races")
    races.check(lines)
    assert [line["holds"] for line in of_kind(read_lines(lines.path), "check")] == [is_clean]


def test_a_missing_tool_is_named_in_the_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(races, "FOLDERS", ("/nowhere",))
    races.check(Lines(tmp_path / report.RESULTS, "races"))
    report.write(tmp_path)
    assert "| races | not looked for: compute-sanitizer is missing" in (tmp_path / report.SUMMARY).read_text()
    assert not report.problems(tmp_path)


def test_products_of_a_library_are_compared_with_our_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumptions.os, "environ", dict(os.environ))
    place = assumptions.Place("cpu", is_gpu=False)
    weight = DenseWeight.of("w", place.numbers(40, 528).bfloat16())
    x = place.numbers(20, 528).bfloat16()
    same = {"differs for rows": "none", "elements unlike our kernel's": "none"}
    assert assumptions.try_library(x, weight, (1, 17)) == same
    product = assumptions.library_linear
    monkeypatch.setattr(assumptions, "library_linear", lambda x, w: product(x, w) + (1000 if len(x) == 17 else 0))
    assert assumptions.try_library(x, weight, (1, 17)) == same | {"differs for rows": "17"}
    monkeypatch.setattr(assumptions, "library_linear", lambda x, w: product(x, w) + 1000)
    assert assumptions.try_library(x, weight, (1, 17)) == same | {"elements unlike our kernel's": "100.00%"}
