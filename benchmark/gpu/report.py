"""The summary of a run, of whatever lines are there: JSON, Markdown and plots."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu.lines import of_kind, read_lines

RESULTS = "results.jsonl"
FILES = ("gpu.json", "gpu.md", "decode.svg", "prefill.svg")
WIDTH, HEIGHT, MARGIN, LEGEND = 800, 320, 56, 190
COLORS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#8c564b", "#e377c2", "#17becf")
Rows = Sequence[dict[str, Any]]
# Of a model, its tables by name.
Tables = dict[str, dict[str, list[dict[str, Any]]]]
PHASE_COLUMNS = ("phase", "status", "seconds", "limit_s")
# Characters of what a failed phase said last.
MOST_SAID = 200
INTERPRETED = (
    "**No GPU: kernels ran in Triton's interpreter, on the CPU and on the smallest shapes. The checks tell whether",
    "they compute the right numbers there; the times tell nothing, and there are no plots of them.**",
)


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
    width, height = WIDTH - MARGIN - LEGEND, HEIGHT - 2 * MARGIN

    def place(x: float, y: float) -> str:
        step = positions.index(x) / max(1, len(positions) - 1)
        return f"{MARGIN + step * width:.1f},{HEIGHT - MARGIN - y / top * height:.1f}"

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="24" font-size="14">{title}: {y_name} over {x_name}</text>',
        f'<text x="4" y="{MARGIN}">{top:,.0f}</text><text x="40" y="{HEIGHT - MARGIN}">0</text>',
        f'<path d="M{MARGIN},{MARGIN}V{HEIGHT - MARGIN}h{width}" fill="none" stroke="#888"/>',
    ]
    for x in positions:
        at = place(x, 0).split(",")[0]
        out.append(f'<text x="{at}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{x:,.0f}</text>')
    for number, (name, line) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(place(x, y) for x, y in line)
        out += ['<circle cx="{}" cy="{}" r="3" fill="{}"/>'.format(*place(x, y).split(","), color) for x, y in line]
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - LEGEND + 16}" y="{MARGIN + 16 * number}" fill="{color}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def write(folder: Path) -> None:
    """gpu.json, gpu.md and plots, of the lines in a folder, however many phases are missing."""
    lines = read_lines(folder / RESULTS)
    figures, checks = of_kind(lines, "figure"), of_kind(lines, "check")
    facts = [line["facts"] for line in of_kind(lines, "note")]
    phases = _phases(lines)
    tables: Tables = {}
    for line in figures:
        tables.setdefault(line["model"], {}).setdefault(line["table"], []).append(line["row"])
    for parts in tables.values():
        for rows in parts.values():
            rows.sort(key=lambda row: (row.get("batch", 0), row.get("tokens", 0)))
    results = {"facts": facts, "phases": phases, "figures": tables, "checks": [_short(check) for check in checks]}
    (folder / "gpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    is_interpreted = any(not fact.get("on_gpu", True) for fact in facts)
    text = ["# The cuda backend: checks and figures", "", "Made by `make gpu-check`.", ""]
    text += [*INTERPRETED, ""] if is_interpreted else []
    for fact in facts:
        text += table([{"machine": key, "": value} for key, value in fact.items()])
    text += _not_done(phases) + _checks(checks) + _figures(tables) + ([] if is_interpreted else _plots(tables, folder))
    text += ["## Phases", "", *table([{key: phase[key] for key in PHASE_COLUMNS} for phase in phases])]
    (folder / "gpu.md").write_text("\n".join(text), encoding="utf-8")


def problems(folder: Path) -> list[str]:
    """What is wrong rather than slow: phases that did not end well, checks that do not hold."""
    lines = read_lines(folder / RESULTS)
    found = [f"{phase['phase']}: {phase['status']}" for phase in _phases(lines) if phase["status"] != "ok"]
    failed = [check for check in of_kind(lines, "check") if not check["holds"]]
    return found + [f"{check['phase']}: {check['name']}: {check['detail']}" for check in failed]


def _phases(lines: Rows) -> list[dict[str, Any]]:
    """Each phase and how it ended; one that has no end was running when the run ended."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["what"] == "begin":
            status = "was running when the run ended"
            found[line["phase"]] = {
                "phase": line["phase"],
                "status": status,
                "seconds": 0.0,
                "limit_s": line["limit_s"],
                "said": "",
            }
        if line["what"] == "end":
            known = found.setdefault(line["phase"], {"phase": line["phase"], "limit_s": 0.0})
            known |= {"status": line["status"], "seconds": line["seconds"], "said": line["said"]}
    return list(found.values())


def _short(check: dict[str, Any]) -> dict[str, Any]:
    return {key: check[key] for key in ("phase", "name", "holds", "detail")}


def _checks(checks: Rows) -> list[str]:
    counts: dict[str, list[int]] = {}
    for check in checks:
        count = counts.setdefault(check["phase"], [0, 0])
        count[0 if check["holds"] else 1] += 1
    rows = [{"phase": phase, "hold": good, "do not hold": bad} for phase, (good, bad) in counts.items()]
    text = ["## Checks", "", *table(rows)]
    failed = [f"- {check['phase']}: {check['name']}: {check['detail']}" for check in checks if not check["holds"]]
    return [*text, *(["Do not hold:", "", *failed, ""] if failed else [])]


def _figures(tables: Tables) -> list[str]:
    text = []
    for model, parts in tables.items():
        text += [f"## {model}", ""]
        for name, rows in parts.items():
            text += [f"### {name}", "", *table(rows)]
    return text


def _plots(tables: Tables, folder: Path) -> list[str]:
    text = []
    for name, x_name in (("decode", "batch"), ("prefill", "tokens")):
        series = {
            f"{model} {part.replace(name, '')}".strip(): _points(rows, x_name, "tokens_per_s")
            for model, parts in tables.items()
            for part, rows in parts.items()
            if part in (name, f"{name} fast", f"transformers {name}")
        }
        if any(series.values()):
            file = f"{name}.svg"
            (folder / file).write_text(plot(name, x_name, "tokens/s", series), encoding="utf-8")
            text += [f"![{name}]({file})", ""]
    return text


def _points(rows: Rows, x_name: str, y_name: str) -> list[tuple[float, float]]:
    return [(row[x_name], row[y_name]) for row in rows if x_name in row and y_name in row]


def _not_done(phases: Rows) -> list[str]:
    missing = [phase for phase in phases if phase["status"] != "ok"]
    lines = [f"- {phase['phase']}: {phase['status']}{_last_words(phase)}" for phase in missing]
    return ["## Not done, or not well", "", *lines, "", "What they said is in `log.txt`.", ""] if missing else []


def _last_words(phase: dict[str, Any]) -> str:
    """Of a phase that failed: the last line, which is where Python says what was wrong."""
    lines = [line for line in phase["said"].splitlines() if line.strip()]
    return f": `{lines[-1].strip()[:MOST_SAID]}`" if lines and phase["status"].startswith("failed") else ""


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
