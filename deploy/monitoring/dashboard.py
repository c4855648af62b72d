#!/usr/bin/env python3
"""Writes the Grafana dashboard of the chart: `python deploy/monitoring/dashboard.py`."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

OUTPUT = Path(__file__).resolve().parents[1] / "helm/trunkline/monitoring/dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${source}"}
SERVERS = ('namespace=~"$namespace"', 'instance=~"$instance"')
PANEL_WIDTH, PANEL_HEIGHT, PANELS_IN_A_ROW = 8, 8, 3


def chosen(metric: str, *matchers: str) -> str:
    """Returns a selector for the servers that are chosen at the top of the dashboard."""
    return f"{metric}{{{','.join((*SERVERS, *matchers))}}}"


def quantiles(metric: str) -> dict[str, str]:
    """Returns queries for the median and higher quantiles of a histogram, by their names in the legend."""
    buckets = rate(f"{metric}_bucket", "le")
    return {f"p{percent}": f"histogram_quantile({percent / 100}, {buckets})" for percent in (50, 95, 99)}


def rate(metric: str, by: str = "", *matchers: str) -> str:
    """Returns a query for the rate of a counter over the chosen servers, by the label `by`."""
    return f"sum by ({by}) (rate({chosen(metric, *matchers)}[$__rate_interval]))"


def total(metric: str) -> str:
    return f"sum({chosen(metric)})"


def increase(metric: str) -> str:
    return f"sum(increase({chosen(metric)}[$__rate_interval]))"


# Row → panel → (unit, what its lines show → query).
ROWS: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "Requests": {
        "Answers": ("reqps", {"{{status}}": rate("trunkline_http_requests_total", "status", 'method="POST"')}),
        "Refused": ("reqps", {"{{code}}": rate("trunkline_rejections_total", "code")}),
        "Sequences": (
            "short",
            {"running": total("trunkline_running_sequences"), "waiting": total("trunkline_queued_sequences")},
        ),
        "Time to first token": ("s", quantiles("trunkline_time_to_first_token_seconds")),
        "Time between tokens": ("s", quantiles("trunkline_inter_token_seconds")),
        "Time in the queue": ("s", quantiles("trunkline_queue_time_seconds")),
        "Ends": ("ops", {"{{reason}}": rate("trunkline_sequences_ended_total", "reason")}),
        "Prompt tokens of a request": ("short", quantiles("trunkline_request_prompt_tokens")),
        "Output tokens of a request": ("short", quantiles("trunkline_request_output_tokens")),
    },
    "Work": {
        "Tokens": (
            "short",
            {
                "output": rate("trunkline_output_tokens_total"),
                "prompt": rate("trunkline_prompt_tokens_total"),
                "prompt, cached": rate("trunkline_prefix_hit_tokens_total"),
            },
        ),
        "Time of a step": ("s", quantiles("trunkline_step_duration_seconds")),
        "Preemptions": (
            "ops",
            {
                "all": rate("trunkline_preemptions_total"),
                "for another tenant": rate("trunkline_fair_preemptions_total"),
            },
        ),
        "Ready shards": ("short", {"{{instance}} {{model}}": chosen("trunkline_shard_ready")}),
        "Streams by lane": (
            "short",
            {"{{instance}} {{model}} lane {{lane}}": chosen("trunkline_lane_running_sequences")},
        ),
        "Lost shards": (
            "short",
            {
                "lost": increase("trunkline_lane_losses_total"),
                "replayed sequences": increase("trunkline_sequences_replayed_total"),
                "convicted sequences": increase("trunkline_sequences_convicted_total"),
            },
        ),
        "Grammar masks": ("s", quantiles("trunkline_grammar_mask_seconds")),
    },
    "KV cache": {
        "Hit rate of prompts": (
            "percentunit",
            {"hits": f"{rate('trunkline_prefix_hit_tokens_total')} / {rate('trunkline_prompt_tokens_total')}"},
        ),
        "Blocks of the pool": (
            "short",
            {
                "held": total("trunkline_kv_blocks_held"),
                "cached": total("trunkline_kv_blocks_cached"),
                "free": total("trunkline_kv_blocks_free"),
            },
        ),
        "Evicted blocks": (
            "ops",
            {"pool": rate("trunkline_evicted_blocks_total"), "store": rate("trunkline_store_evicted_blocks_total")},
        ),
        "Store": (
            "ops",
            {
                "written blocks": rate("trunkline_stored_blocks_total"),
                "read blocks": rate("trunkline_restored_blocks_total"),
            },
        ),
        "Failures of the store": (
            "ops",
            {
                "not written": rate("trunkline_store_failures_total"),
                "missing or damaged": rate("trunkline_restore_failures_total"),
                "given up": rate("trunkline_restores_given_up_total"),
            },
        ),
        "Object store": (
            "Bps",
            {
                "uploaded": rate("trunkline_object_uploaded_bytes_total"),
                "downloaded": rate("trunkline_object_downloaded_bytes_total"),
            },
        ),
    },
}


def panel(title: str, unit: str, lines: dict[str, str], place: dict[str, int], number: int) -> dict[str, Any]:
    targets = []
    for letter, (legend, query) in zip("ABCDEF", lines.items(), strict=False):
        targets.append({"refId": letter, "datasource": SOURCE, "expr": query, "legendFormat": legend})
    return {
        "id": number,
        "type": "timeseries",
        "title": title,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": unit, "min": 0, "custom": {"fillOpacity": 10}}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": targets,
    }


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    numbers, y = count(1), 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": PANEL_WIDTH * PANELS_IN_A_ROW, "h": 1}
        found.append(
            {"id": next(numbers), "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        y += 1
        for index, (name, (unit, lines)) in enumerate(row.items()):
            x = index % PANELS_IN_A_ROW
            place = {"x": x * PANEL_WIDTH, "y": y, "w": PANEL_WIDTH, "h": PANEL_HEIGHT}
            found.append(panel(name, unit, lines, place, next(numbers)))
            y += PANEL_HEIGHT if x == PANELS_IN_A_ROW - 1 else 0
    return found


def variable(name: str, label: str, others: str) -> dict[str, Any]:
    query = f"label_values(trunkline_shard_ready{others}, {name})"
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        # `.*` also matches series without the label, as outside Kubernetes.
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def dashboard() -> dict[str, Any]:
    return {
        "uid": "trunkline",
        "title": "Trunkline",
        "tags": ["trunkline"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "label": "Source", "type": "datasource", "query": "prometheus"},
                variable("namespace", "Namespace", ""),
                variable("instance", "Server", '{namespace=~"$namespace"}'),
            ]
        },
        "panels": panels(),
    }


def text() -> str:
    """Returns the content of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    OUTPUT.write_text(text())
