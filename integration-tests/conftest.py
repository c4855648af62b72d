"""Fixtures of the whole-system tests, and what all their servers share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator

import harness
import pytest
from harness import Trunkline, serving
from tenants import Tenants, write_keys

# The folder of packed weights that all processes of one run share.
PACKED_WEIGHTS = "TRUNKLINE_TEST_PACKED_WEIGHTS"
# Files whose tests take longest, by measured seconds; xdist hands whole files to its workers in this order, so that the
# last ones to finish are short.
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
    parser.addoption("--record", action="store_true", help="write the snapshots again instead of comparing")
    parser.addoption("--all-schemas", action="store_true", help="every schema of the sample, not a few of them")


def pytest_configure(config: pytest.Config) -> None:
    """Makes servers cheap to start and to run.

    The first start of a run packs the weights, the others map them. One thread computes the same bits as several and
    does not spin while it waits for the others; `test_exactness.py` compares them.
    """
    if PACKED_WEIGHTS not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="trunkline-packed-")
        config.add_cleanup(folder.cleanup)
        os.environ[PACKED_WEIGHTS] = folder.name
        config.add_cleanup(lambda: os.environ.pop(PACKED_WEIGHTS, None))
    harness.DEFAULTS |= {"TRUNKLINE_WEIGHTS_CACHE": os.environ[PACKED_WEIGHTS], "TRUNKLINE_THREADS": "1"}
    # xdist would begin with the files that have most tests.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first and leaves the order within each file as it is."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def server() -> Iterator[Trunkline]:
    """The default server on the embedded model, shared by tests that do not harm it."""
    with serving() as running:
        yield running


@pytest.fixture(scope="session")
def cutting() -> Iterator[Trunkline]:
    """A second server on the embedded model, which cuts every prompt into chunks of at most 37 tokens."""
    with serving("--max-batch-prefill-tokens", "37") as running:
        yield running


@pytest.fixture(scope="session")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    """A server that asks for API keys and runs at most 16 sequences at once, so that a small flood fills it."""
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    write_keys(path)
    flags = ("--api-keys", str(path), "--max-concurrent-requests", "256", "--max-step-sequences", "16")
    with serving(*flags) as running:
        yield Tenants(running, path)
