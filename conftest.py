"""Selects the tier of the Python tests: `make test` runs the first, `make test-all` both."""

from __future__ import annotations

import os

import pytest

ALL_TIERS = os.environ.get("TRUNKLINE_TEST_ALL") == "1"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects tests marked `full`, unless `TRUNKLINE_TEST_ALL=1`."""
    if ALL_TIERS:
        return
    full = [item for item in items if item.get_closest_marker("full")]
    if full:
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if not item.get_closest_marker("full")]
