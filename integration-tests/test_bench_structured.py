"""`make bench NAME=structured`, which takes many minutes, reports its progress."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest
from harness import ROOT


@pytest.mark.full
def test_progress_is_written_to_stderr_after_each_turn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmark"))
    import structured

    turns_reported: list[int] = []
    progress = ""

    @contextlib.contextmanager
    def serving() -> Iterator[None]:
        yield

    def measure(*_: object) -> structured.Turn:
        nonlocal progress
        progress += capsys.readouterr().err
        turns_reported.append(progress.count("turn"))
        return structured.Turn(2.0, 1.0, 0.5)

    monkeypatch.setattr(structured, "serving", serving)
    monkeypatch.setattr(structured, "measure", measure)
    monkeypatch.setattr(sys, "argv", ["structured", "--repeat", "3", "--forms", "free,text"])
    structured.main()
    # The first call warms up; then each turn measures both forms.
    assert turns_reported == [0, 0, 0, 1, 1, 2, 2]
    report = capsys.readouterr()
    assert "turn 3 of 3, after " in report.err
    assert "turn 1 of 3" in progress
    assert [line.split()[0] for line in report.out.splitlines()] == ["free", "text"]
