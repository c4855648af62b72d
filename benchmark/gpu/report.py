"""Figures as JSON, Markdown and plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

WIDTH, HEIGHT, MARGIN = 640, 320, 56
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
Rows = Sequence[dict[str, Any]]


def table(rows: Rows) -> list[str]:
    """A Markdown table of rows with the same keys; what is a dict becomes several columns."""
    if not rows:
        return []
    flat = [_flat(row) for row in rows]
    names = list(flat[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(_cell(row.get(name)) for name in names) + " |" for row in flat]
    return [*lines, ""]


def plot(title: str, x_name: str, y_name: str, series: dict[str, list[tuple[float, float]]]) -> str:
    """An SVG of lines; x in the order of the points, evenly spaced."""
    points = [point for line in series.values() for point in line]
    positions = sorted({x for x, _ in points})
    top = max((y for _, y in points), default=1.0) or 1.0
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN

    def place(x: float, y: float) -> str:
        step = positions.index(x) / max(1, len(positions) - 1)
        return f"{MARGIN + step * width:.1f},{HEIGHT - MARGIN - y / top * height:.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="24" font-size="14">{title}: {y_name} over {x_name}</text>',
        f'<text x="4" y="{MARGIN}">{top:,.0f}</text>',
        f'<path d="M{MARGIN},{MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" fill="none" stroke="#888"/>',
    ]
    for x in positions:
        at = place(x, 0).split(",")[0]
        out.append(f'<text x="{at}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{x:,.0f}</text>')
    for number, (name, line) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(place(x, y) for x, y in line)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - MARGIN - 150}" y="{MARGIN + 16 * number}" fill="{color}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def write(results: dict[str, Any], output: Path) -> None:
    """gpu.json, gpu.md and a plot for decode and for prefill of each model."""
    output.mkdir(parents=True, exist_ok=True)
    (output / "gpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    lines = ["# The cuda backend on a GPU", "", f"Made by `make gpu-check` on {results['device']}.", ""]
    if "limits" in results:
        lines += ["Shares are of what the card did in the same run:", "", *table([results["limits"]])]
    for model, parts in results["models"].items():
        lines += [f"## {model}", ""]
        for name, rows in parts.items():
            lines += [f"### {name}", "", *(table(rows) if isinstance(rows, list) else [str(rows), ""])]
        for name, x_name in (("decode", "batch"), ("prefill", "tokens")):
            rows = parts.get(name)
            if isinstance(rows, list) and rows:
                series = {"trunkline": [(row[x_name], row["tokens_per_s"]) for row in rows]}
                beside = parts.get(f"transformers {name}")
                if isinstance(beside, list):
                    series["transformers"] = [(row[x_name], row["tokens_per_s"]) for row in beside]
                file = f"{model}-{name}.svg"
                (output / file).write_text(plot(f"{model} {name}", x_name, "tokens/s", series), encoding="utf-8")
                lines += [f"![{name} of {model}]({file})", ""]
    (output / "gpu.md").write_text("\n".join(lines), encoding="utf-8")


def problems(results: dict[str, Any]) -> list[str]:
    """What is wrong rather than slow: parts that failed, replies that other requests or the cache changed."""
    found = []
    for model, parts in results["models"].items():
        for name, rows in parts.items():
            if isinstance(rows, str):
                found += [f"{model}: {name} {rows}"] if rows.startswith("failed: ") else []
                continue
            for row in rows:
                found += [f"{model}: {name}: `{key}` is not" for key, value in row.items() if value is False]
    return found


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {f"{name} {inner}": number for inner, number in value.items()}
        else:
            flat[name] = value
    return flat


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return str(value)
