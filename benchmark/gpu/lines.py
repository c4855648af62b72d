"""Results as lines of JSON, each written at once, so that a phase that fails keeps its earlier results."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


class Lines:
    """Appends a phase's results to a file shared by several processes. Each line is a single write."""

    def __init__(self, path: Path, phase: str) -> None:
        self.path = path
        self._phase = phase

    def figure(self, model: str, table: str, row: Mapping[str, Any]) -> None:
        """Adds a row to one of a model's tables."""
        self._write({"what": "figure", "model": model, "table": table, "row": dict(row)})

    def check(self, name: str, *, holds: bool, detail: str = "") -> None:
        """Records whether a required condition holds."""
        self._write({"what": "check", "name": name, "holds": holds, "detail": detail})

    def note(self, **facts: Any) -> None:
        """Records facts about the machine and the run."""
        self._write({"what": "note", "facts": facts})

    def begin(self, limit_s: float) -> None:
        self._write({"what": "begin", "limit_s": round(limit_s, 1)})

    def end(self, status: str, seconds: float, said: str = "") -> None:
        """Records how the phase ended. `status` is "ok" or the problem, `said` the end of the phase's output."""
        self._write({"what": "end", "status": status, "seconds": round(seconds, 1), "said": said})

    def _write(self, line: Mapping[str, Any]) -> None:
        text = json.dumps({"phase": self._phase, "time": round(time.time(), 3), **line}) + "\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Reads the lines written so far, without an incomplete last line."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def of_kind(lines: Iterable[dict[str, Any]], what: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["what"] == what]
