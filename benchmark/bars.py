"""Draws bars of the medians in a peers.json.

`make bench NAME=peers` draws all its workloads. Called by itself, it draws docs/speed.svg for the README:
python3 benchmark/bars.py
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# The README's peers with their names there.
README_PEERS = {"trunkline": "Trunkline", "openvino": "OpenVINO GenAI", "llamacpp": "llama.cpp"}
COLOURS = {"trunkline": "#e07b00", "openvino": "#7d8ca3"}
OTHER_COLOUR = "#b9c2cf"
PANEL_WIDTH, LABEL_WIDTH, VALUE_WIDTH, BAR_HEIGHT, TOP, PANELS_A_ROW = 300, 104, 56, 24, 62, 3


@dataclass(frozen=True)
class Panel:
    """One metric of one workload, with a bar for each peer."""

    workload: str
    metric: str
    titles: tuple[str, str]
    form: str
    scale: float = 1.0

    def values(self, workloads: dict[str, Any], peers: Sequence[str]) -> dict[str, float]:
        """Returns the medians of the peers that have one."""
        rounds = workloads.get(self.workload, {"rounds": {}})["rounds"]
        made = {peer: [each[self.metric] for each in rounds.get(peer, []) if self.metric in each] for peer in peers}
        return {peer: statistics.median(values) * self.scale for peer, values in made.items() if values}


LESS, MORE = "less is better", "more is better"
COLD = Panel(
    "history", "cold_ttft_ms", ("6,000-token history, first turn", f"s to the first token, {LESS}"), "{:.1f} s", 1e-3
)
WARM = Panel(
    "history", "warm_ttft_ms", ("the same history and 32 new tokens", f"ms to the first token, {LESS}"), "{:,.0f} ms"
)
DECODE = [
    Panel(
        f"decode-{n}", "tokens_per_s", (f"{n} streams at once" if n > 1 else "one stream",
        f"tokens/s of all streams, {MORE}"), "{:,.0f}",
    )
    for n in (1, 8, 32)
]  # fmt: skip
PREFILL = [
    Panel(f"prefill-{n}", "tokens_per_s", (f"prompt of {n:,} tokens", f"tokens/s, {MORE}"), "{:,.0f}")
    for n in (512, 2048, 8000)
]
LOADS = [
    Panel(load, "goodput_per_s", (load, f"requests/s within the bounds, {MORE}"), "{:.2f}")
    for load in ("poisson-3", "closed-16", "chat-32")
]
GAP = Panel("interruption", "worst_gap_ms", ("a long prompt beside 8 streams", f"worst gap, {LESS}"), "{:,.0f} ms")
README_PANELS = (COLD, WARM, DECODE[-1])
ALL_PANELS = (COLD, WARM, GAP, *DECODE, *PREFILL, *LOADS)


def draw(panel: Panel, left: int, top: int, values: dict[str, float], names: dict[str, str]) -> list[str]:
    widest = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    out = [
        f'<text x="{left}" y="{top + 24}" font-size="14" font-weight="bold">{panel.titles[0]}</text>',
        f'<text x="{left}" y="{top + 42}" fill="#666">{panel.titles[1]}</text>',
    ]
    for row, (peer, value) in enumerate(values.items()):
        y, width = top + TOP + row * (BAR_HEIGHT + 8), max(widest * value / (max(values.values()) or 1.0), 2)
        x = left + LABEL_WIDTH
        colour = COLOURS.get(peer, OTHER_COLOUR)
        out.append(f'<text x="{x - 6}" y="{y + 16}" text-anchor="end">{names[peer]}</text>')
        out.append(f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="{colour}"/>')
        out.append(f'<text x="{x + width + 5:.1f}" y="{y + 16}">{panel.form.format(value)}</text>')
    return out


def picture(workloads: dict[str, Any], panels: Sequence[Panel], names: dict[str, str]) -> str:
    """Draws the panels that have values. names: the peers in order, with the text beside their bars."""
    found = [(panel, values) for panel in panels if (values := panel.values(workloads, list(names)))]
    height_of_panel = TOP + len(names) * (BAR_HEIGHT + 8) + 8
    width = min(len(found), PANELS_A_ROW) * (PANEL_WIDTH + 12) + 12
    height = -(-len(found) // PANELS_A_ROW) * height_of_panel
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, (panel, values) in enumerate(found):
        row, column = divmod(index, PANELS_A_ROW)
        out += draw(panel, 12 + column * (PANEL_WIDTH + 12), row * height_of_panel, values, names)
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    workloads = json.loads((ROOT / "benchmark/results/peers.json").read_text())["workloads"]
    (ROOT / "docs/speed.svg").write_text(picture(workloads, README_PANELS, README_PEERS))


if __name__ == "__main__":
    main()
