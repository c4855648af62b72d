"""Draws docs/speed.svg for the README from the medians in benchmark/results/peers.json.

python3 benchmark/readme_plot.py
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = {"trunkline": "Trunkline", "openvino": "OpenVINO GenAI", "llamacpp": "llama.cpp"}
COLOURS = {"trunkline": "#e07b00", "openvino": "#7d8ca3", "llamacpp": "#b9c2cf"}
PANEL_WIDTH, LABEL_WIDTH, VALUE_WIDTH, BAR_HEIGHT, TOP = 300, 104, 56, 24, 62


@dataclass(frozen=True)
class Panel:
    """One metric of one workload, with a bar for each peer."""

    workload: str
    metric: str
    titles: tuple[str, str]
    form: str
    scale: float = 1.0


PANELS = (
    Panel(
        "history",
        "cold_ttft_ms",
        ("6,000-token history, first turn", "s to the first token, less is better"),
        "{:.1f} s",
        1e-3,
    ),
    Panel(
        "history",
        "warm_ttft_ms",
        ("the same history and 32 new tokens", "ms to the first token, less is better"),
        "{:.0f} ms",
    ),
    Panel("decode-32", "tokens_per_s", ("32 streams at once", "tokens/s of all streams, more is better"), "{:,.0f}"),
)


def draw(panel: Panel, left: int, rounds: dict[str, list[dict[str, float]]]) -> list[str]:
    """Returns the SVG elements of one panel."""
    values = {peer: statistics.median(each[panel.metric] for each in rounds[peer]) * panel.scale for peer in PEERS}
    widest = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    out = [
        f'<text x="{left}" y="24" font-size="14" font-weight="bold">{panel.titles[0]}</text>',
        f'<text x="{left}" y="42" fill="#666">{panel.titles[1]}</text>',
    ]
    for row, (peer, value) in enumerate(values.items()):
        y, width = TOP + row * (BAR_HEIGHT + 8), max(widest * value / max(values.values()), 2)
        x = left + LABEL_WIDTH
        out.append(f'<text x="{x - 6}" y="{y + 16}" text-anchor="end">{PEERS[peer]}</text>')
        out.append(f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}" fill="{COLOURS[peer]}"/>')
        out.append(f'<text x="{x + width + 5:.1f}" y="{y + 16}">{panel.form.format(value)}</text>')
    return out


def main() -> None:
    workloads = json.loads((ROOT / "benchmark/results/peers.json").read_text())["workloads"]
    width, height = len(PANELS) * (PANEL_WIDTH + 12) + 12, TOP + len(PEERS) * (BAR_HEIGHT + 8) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for index, panel in enumerate(PANELS):
        out += draw(panel, 12 + index * (PANEL_WIDTH + 12), workloads[panel.workload]["rounds"])
    (ROOT / "docs/speed.svg").write_text("\n".join([*out, "</svg>"]) + "\n")


if __name__ == "__main__":
    main()
