"""Line charts as SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log

WIDTH, HEIGHT, MARGIN, LEGEND = 800, 400, 56, 190
COLOURS = ("#c2410c", "#2563eb", "#0d9488", "#7c3aed", "#a3a3a3", "#8c564b", "#e377c2", "#17becf", "#bcbd22", "black")
NUM_GRID_LINES = 5


def line_chart(
    title: str,
    x_name: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    y_text: Callable[[float], str] = "{:,.0f}".format,
    is_linear: bool = False,
) -> str:
    """Draws lines through (x, y), with a logarithmic axis of x and a linear one of y from 0. x must be positive.

    With `is_linear`, the axis of x is linear from 0.
    """
    points = [point for line in series.values() for point in line]
    marks = sorted({x for x, _ in points})
    if is_linear:
        marks = [marks[-1] * step / NUM_GRID_LINES for step in range(NUM_GRID_LINES + 1)]
    top = max((y for _, y in points), default=1.0) * 1.05 or 1.0
    width, height = WIDTH - MARGIN - LEGEND, HEIGHT - 2 * MARGIN

    def place_x(x: float) -> float:
        if is_linear:
            return MARGIN + width * x / marks[-1]
        return MARGIN + width * log(x / marks[0]) / max(log(marks[-1] / marks[0]), 1e-9)

    def place_y(y: float) -> float:
        return HEIGHT - MARGIN - height * y / top

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="24" font-size="14">{title}</text>',
        f'<text x="{MARGIN + width / 2}" y="{HEIGHT - 12}" text-anchor="middle">{x_name}</text>',
    ]
    for step in range(NUM_GRID_LINES + 1):
        y = top * step / NUM_GRID_LINES
        out.append(f'<path d="M{MARGIN} {place_y(y):.1f}h{width}" stroke="#e5e5e5"/>')
        out.append(f'<text x="{MARGIN - 6}" y="{place_y(y) + 4:.1f}" text-anchor="end">{y_text(y)}</text>')
    for x in marks:
        out.append(f'<text x="{place_x(x):.1f}" y="{HEIGHT - MARGIN + 18}" text-anchor="middle">{x:,.0f}</text>')
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [(f"{place_x(x):.1f}", f"{place_y(y):.1f}") for x, y in line]
        path = " ".join(f"{x},{y}" for x, y in places)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in places]
        out.append(f'<text x="{WIDTH - LEGEND + 16}" y="{MARGIN + 16 * number}" fill="{colour}">{name}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
