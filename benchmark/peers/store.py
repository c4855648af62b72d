"""The measurements of a run, each written at once as a JSON line, so that an interrupted run can be resumed."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Metrics = dict[str, Any]


@dataclass
class Store:
    """All measurements. `settings` must be the same when a run is resumed. Failures have `error` in their metrics."""

    path: Path
    settings: dict[str, Any]
    measured: dict[tuple[str, str, int], Metrics] = field(default_factory=dict)

    def open(self, *, resume: bool) -> None:
        """Starts a new file or resumes from an existing one. Raises ValueError if that has other settings."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if resume and self.path.is_file():
            # A line that was cut short by a kill is dropped.
            whole = self.path.read_text().rpartition("\n")[0]
            head, *lines = whole.splitlines() or ["{}"]
            if json.loads(head) != {"settings": self.settings}:
                raise ValueError(f"`{self.path}` was written with other settings; hint: run without --resume")
            self.path.write_text(whole + "\n")
            for line in lines:
                made = json.loads(line)
                if "error" not in made["metrics"]:
                    self.measured[made["peer"], made["workload"], made["round"]] = made["metrics"]
        else:
            self.path.write_text(json.dumps({"settings": self.settings}) + "\n")

    def add(self, peer: str, workload: str, number: int, metrics: Metrics) -> None:
        self.measured[peer, workload, number] = metrics
        with self.path.open("a") as out:
            out.write(json.dumps({"peer": peer, "workload": workload, "round": number, "metrics": metrics}) + "\n")

    def has(self, peer: str, workload: str, number: int) -> bool:
        return (peer, workload, number) in self.measured

    def of(self, peer: str, workload: str) -> list[Metrics]:
        """Returns all rounds of one cell, in order."""
        return [m for (p, w, _), m in sorted(self.measured.items()) if (p, w) == (peer, workload)]

    def cut_off(self, peer: str, workload: str) -> bool:
        return any("over_s" in m for m in self.of(peer, workload))

    def error(self, peer: str, workload: str) -> str | None:
        """Returns why a cell has no figure, or None if it has one."""
        errors = [m["error"] for m in self.of(peer, workload) if "error" in m]
        return errors[0] if errors and len(errors) == len(self.of(peer, workload)) else None

    def values(self, peer: str, workload: str, metric: str) -> list[float]:
        """Returns one metric's values over the rounds that have it."""
        return [m[metric] for m in self.of(peer, workload) if metric in m]
