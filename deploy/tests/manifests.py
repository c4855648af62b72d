"""Writes plain manifests for those without Helm: `make manifests`."""

from __future__ import annotations

import re

import chart

# Manifest → values of the chart.
MANIFESTS = {
    "cpu": "backend=cpu",
    "cpu-disk": "diskTier.enabled=true",
    "cuda": "backend=cuda,modelVolume.size=50Gi,model=Qwen/Qwen3-8B",
}
HEADER = """# Made by `make manifests` from the chart with `--set {values}`.
# Write your registry before the image's name, then apply this with `kubectl apply -f`.
"""
# Lines that speak of Helm, and empty ones.
OMITTED = re.compile(r"^( *helm\.sh/chart: .*| *app\.kubernetes\.io/managed-by: .*|# Source: .*| *)\n", re.MULTILINE)


def render(values: str) -> str:
    """Returns the content of a manifest."""
    return HEADER.format(values=values) + OMITTED.sub("", chart.template("--set", values))


if __name__ == "__main__":
    chart.MANIFESTS.mkdir(exist_ok=True)
    for name, values in MANIFESTS.items():
        (chart.MANIFESTS / f"{name}.yaml").write_text(render(values))
