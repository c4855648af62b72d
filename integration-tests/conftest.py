"""Fixtures of the whole-system tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import Trunkline, serving


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write the snapshots again instead of comparing")
    parser.addoption("--all-schemas", action="store_true", help="every schema of the sample, not a few of them")


@pytest.fixture(scope="session")
def server() -> Iterator[Trunkline]:
    """The default server on the embedded model, shared by tests that do not harm it."""
    with serving() as running:
        yield running
