"""The Markdown report of a run, with a table for each workload."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from .peer import Peer
from .store import Store
from .workload import Arrivals, Chat, Decode, History, Interruption, Overhead, Prefill, Start, Workload


@dataclass(frozen=True)
class Column:
    """One metric of a workload. `more` is true if more is better."""

    metric: str
    title: str
    digits: int
    more: bool


RATE = Column("tokens_per_s", "tok/s", 0, True)
TTFT = [Column(f"ttft_p{p}_ms", f"TTFT p{p}, ms", 0, False) for p in (50, 90, 99)]
ITL = [Column(f"itl_p{p}_ms", f"ITL p{p}, ms", 1, False) for p in (50, 90, 99)]
COLUMNS: dict[type[Workload], list[Column]] = {
    Start: [
        Column("start_s", "to first token, s", 2, False),
        Column("memory_mb", "resident, MB", 0, False),
        Column("idle_cpu_percent", "idle CPU, %", 2, False),
    ],
    Decode: [RATE, Column("itl_p50_ms", "ITL p50, ms", 2, False)],
    Prefill: [RATE, Column("ttft_ms", "TTFT, ms", 1, False)],
    History: [Column("cold_ttft_ms", "TTFT cold, ms", 0, False), Column("warm_ttft_ms", "TTFT + 32, ms", 1, False)],
    Overhead: [Column("device_step_ms", "kernels, ms/step", 3, False), Column("added_step_ms", "added", 3, False)],
    Interruption: [
        Column("worst_gap_ms", "worst gap, ms", 0, False),
        Column("itl_during_p50_ms", "ITL p50 during", 1, False),
        Column("itl_before_p50_ms", "before", 1, False),
        Column("long_ttft_ms", "TTFT of the long prompt, ms", 0, False),
    ],
    Arrivals: [
        RATE,
        *TTFT,
        *ITL,
        Column("tpot_p50_ms", "TPOT p50, ms", 1, False),
        Column("goodput_per_s", "goodput, req/s", 2, True),
    ],
    Chat: [RATE, *TTFT, *ITL, Column("goodput_per_s", "goodput, answers/s", 2, True)],
}
NOTHING = "–"
# The row that ratios compare with.
US = "trunkline"


def spread(values: list[float], digits: int) -> str:
    """Formats the median, and the range if there is more than one value."""
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) < 2:
        return middle
    return f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


@dataclass
class Report:
    store: Store
    peers: list[Peer]
    workloads: list[Workload]
    head: list[str]
    """Paragraphs about the machine and the run."""

    def markdown(self) -> str:
        parts = ["# Trunkline and its peers", *self.head, self.peer_table()]
        for workload in self.workloads:
            parts.append(self.table(workload))
            if isinstance(workload, Chat):
                parts.append(self.turns(workload))
        return "\n\n".join(part for part in [*parts, "![the medians as bars](peers.svg)"] if part) + "\n"

    def peer_table(self) -> str:
        lines = ["## Peers", "", "| row | project | weights | |", "|---|---|---|---|"]
        for peer in self.peers:
            error = self.store.error(peer.name, "install")
            note = f"**not installed: {cell(error)}**" if error else peer.note
            lines.append(f"| {peer.name} | {peer.project} | {peer.weights} | {note} |")
        return "\n".join(lines)

    def table(self, workload: Workload) -> str:
        columns = COLUMNS[type(workload)]
        rows = [row for peer in self.peers if (row := self.row(peer, workload, columns))]
        if not rows:
            return ""
        first = "ratio" if len(columns) == 1 else f"ratio by {columns[0].title.split(',')[0]}"
        titles = " | ".join(["", *(c.title for c in columns), first, "n"])
        return "\n".join([f"## {workload.title}", "", f"|{titles} |", "|---" * (len(columns) + 3) + "|", *rows])

    def row(self, peer: Peer, workload: Workload, columns: list[Column]) -> str | None:
        made = self.store.of(peer.name, workload.name)
        failed = self.store.error(peer.name, workload.name) or self.store.error(peer.name, "install")
        if not made and not failed:
            return None
        if failed:
            return f"| {peer.name} | {cell(failed)} |" + " |" * (len(columns) + 1)
        over = [m["over_s"] for m in made if "over_s" in m]
        cells = []
        for column in columns:
            values = self.store.values(peer.name, workload.name, column.metric)
            cells.append(spread(values, column.digits) if values else NOTHING)
        if over and all(c == NOTHING for c in cells):
            cells[0] = f"over {over[0]:.0f} s"
        name = peer.name
        if over:
            name += f" (cut off: over {over[0]:.0f} s)"
        if any(m.get("in_turn") for m in made):
            name += " (streams served one after another)"
        cells += [self.ratio(peer, workload, columns[0]), str(len(made))]
        return f"| {name} | {' | '.join(cells)} |"

    def ratio(self, peer: Peer, workload: Workload, column: Column) -> str:
        """Formats how many times better Trunkline is."""
        ours = self.store.values(US, workload.name, column.metric)
        theirs = self.store.values(peer.name, workload.name, column.metric)
        if peer.name == US or not ours or not theirs or not min(*ours, *theirs, 1e9) > 0:
            return NOTHING
        us, them = statistics.median(ours), statistics.median(theirs)
        return f"{us / them if column.more else them / us:.2f} ×"

    def turns(self, workload: Chat) -> str:
        titles = [f"TTFT p{p}" for p in (50, 90, 99)] + [f"ITL p{p}" for p in (50, 90, 99)]
        metrics = [f"{m}_p{p}_ms" for m in ("ttft", "itl") for p in (50, 90, 99)]
        rows = []
        for peer in self.peers:
            made = [m["turns"] for m in self.store.of(peer.name, workload.name) if "turns" in m]
            for number in range(max((len(turns) for turns in made), default=0)):
                of_turn = [turns[number] for turns in made if number < len(turns)]
                cells = [turn_cell(of_turn, metric) for metric in metrics]
                answers = sum(turn["answers"] for turn in of_turn)
                rows.append(f"| {peer.name} | {number + 1} | {answers} | {' | '.join(cells)} |")
        if not rows:
            return ""
        head = f"| | turn | answers | {' | '.join(titles)} |"
        return "\n".join(["By turn, ms:", "", head, "|---" * (len(titles) + 3) + "|", *rows])

    def json(self) -> dict[str, Any]:
        """Returns the report's data with every single value, as JSON."""
        result: dict[str, Any] = {"settings": self.store.settings, "head": self.head, "workloads": {}}
        for workload in self.workloads:
            by_peer = {p.name: self.store.of(p.name, workload.name) for p in self.peers}
            made = {name: rounds for name, rounds in by_peer.items() if rounds}
            result["workloads"][workload.name] = {"title": workload.title, "rounds": made}
        result["install"] = {p.name: self.store.of(p.name, "install") for p in self.peers}
        return result


def turn_cell(of_turn: list[dict[str, float]], metric: str) -> str:
    values = [turn[metric] for turn in of_turn if metric in turn]
    return f"{statistics.median(values):,.1f}" if values else NOTHING


def cell(text: str | None) -> str:
    """Escapes text for a table's cell."""
    return " ".join((text or "").replace("|", "/").split())
