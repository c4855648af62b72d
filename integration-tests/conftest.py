"""Fixtures of the system tests, and settings that all their servers share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import harness
import pytest
from harness import Trunkline, serving
from tenants import Tenants, write_keys

# Environment variable that names the folder of packed weights, shared by all processes of one run.
PACKED_WEIGHTS = "TRUNKLINE_TEST_PACKED_WEIGHTS"
# The files that take longest, slowest first. xdist hands out whole files in this order, so that short ones finish last.
LONGEST_FIRST = [
    "test_restart.py",
    "test_exactness.py",
    "test_structured.py",
    "test_watermark.py",
    "test_windows.py",
    "test_api_table.py",
    "test_processes.py",
    "test_exact_dialects.py",
    "test_history.py",
    "test_prompt_logprobs.py",
    "test_logs.py",
    "test_accuracy.py",
]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="record the snapshots instead of comparing with them")
    parser.addoption("--all-schemas", action="store_true", help="test every schema of the sample, not only a few")


def pytest_configure(config: pytest.Config) -> None:
    """Sets defaults that make servers cheap to start and run.

    The first server of a run packs the weights; the others map them. Servers use one thread, because it never spins
    while it waits for others and computes the same bits as several; `test_exactness.py` checks this.
    """
    if PACKED_WEIGHTS not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="trunkline-packed-")
        config.add_cleanup(folder.cleanup)
        os.environ[PACKED_WEIGHTS] = folder.name
        config.add_cleanup(lambda: os.environ.pop(PACKED_WEIGHTS, None))
    harness.DEFAULTS |= {"TRUNKLINE_WEIGHTS_CACHE": os.environ[PACKED_WEIGHTS], "TRUNKLINE_THREADS": "1"}
    # Otherwise xdist begins with the files that contain most tests.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first and keeps the order within each file."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def server() -> Iterator[Trunkline]:
    """A default server on the embedded model, shared by tests that leave it intact."""
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def chunking() -> Iterator[Trunkline]:
    """A second server on the embedded model, which splits every prompt into chunks of at most 37 tokens."""
    with serving("--max-batch-prefill-tokens", "37") as running:
        yield running


@pytest.fixture(scope="session")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    """A server that requires API keys and runs at most 16 sequences at once, so that a small flood fills it."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    write_keys(path)
    flags = ("--api-keys", str(path), "--max-concurrent-requests", "256", "--max-step-sequences", "16")
    with serving(*flags) as running:
        yield Tenants(running, path)
