"""Draws the rows that `make sim-fleet … PLOT=FOLDER` writes, against the load or the number of lanes.

python benchmark/fleet.py FILE.jsonl writes two charts beside it, FILE-load-… for one number of lanes and FILE-lanes-…
for several.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from line_chart import line_chart

OURS = "lanes"


def main() -> None:
    path = Path(sys.argv[1])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    nums_lanes = {row["lanes"] for row in rows}
    loads = {row["load"] for row in rows}
    if len(nums_lanes) > 1:
        rows = [row for row in rows if row["load"] == max(loads)]
        kind, x_name, where = "lanes", "lanes", f"at {max(loads):.0%} of what the lanes complete"
        xs = [row["lanes"] for row in rows]
    else:
        kind, x_name, where = "load", "requests in % of what the lanes complete", f"{nums_lanes.pop()} lanes"
        xs = [100 * row["load"] for row in rows]
    policies = sorted({row["policy"]: None for row in rows}, key=lambda policy: policy != OURS)
    for name, what, key, y_text in (
        ("first-token", "first token at the 99th percentile", "p99_s", "{:.0f} s"),
        ("hits", "prompt tokens that hit", "hit_rate", "{:.0%}"),
    ):
        series = {
            policy: [(x, row[key]) for x, row in zip(xs, rows, strict=True) if row["policy"] == policy]
            for policy in policies
        }
        chart = line_chart(f"{what}, {where}", x_name, series, y_text=y_text.format)
        path.with_name(f"{path.stem}-{kind}-{name}.svg").write_text(chart)


if __name__ == "__main__":
    main()
