"""`make bench NAME=structured` takes many minutes: it says how far it is."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest
from harness import ROOT


@pytest.mark.full
def test_each_turn_is_told_when_it_is_done_beside_the_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmark"))
    import structured

    told_before: list[int] = []
    told = ""

    @contextlib.contextmanager
    def serving() -> Iterator[None]:
        yield

    def measure(*_: object) -> structured.Turn:
        nonlocal told
        told += capsys.readouterr().err
        told_before.append(told.count("turn"))
        return structured.Turn(2.0, 1.0, 0.5)

    monkeypatch.setattr(structured, "serving", serving)
    monkeypatch.setattr(structured, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["structured", "--repeat", "3", "--forms", "free,text"])
    structured.main()
    # Once before all turns, then each form.
    assert told_before == [0, 0, 0, 1, 1, 2, 2]
    report = capsys.readouterr()
    assert "turn 3 of 3, after " in report.err
    assert "turn 1 of 3" in told
    assert [line.split()[0] for line in report.out.splitlines()] == ["free", "text"]
