"""Fixtures of the system tests, and settings that all their servers share."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import harness
import pytest
from harness import EMBEDDED, Trunkline, serving
from tenants import Tenants, write_keys

# Environment variable that names the folder of packed weights, shared by all processes of one run.
PACKED_WEIGHTS = "TRUNKLINE_TEST_PACKED_WEIGHTS"
# The files that take longest, slowest first. xdist hands out whole files in this order, so that short ones finish last.
LONGEST_FIRST = [
    "test_models.py",
    "test_speculation.py",
    "test_restart.py",
    "test_reload.py",
    "test_watermark.py",
    "test_poisons.py",
    "test_exactness.py",
    "test_api_table.py",
    "test_structured.py",
    "test_accuracy.py",
    "test_windows.py",
    "test_processes.py",
    "test_advisories.py",
]


# Files whose fixture `server` has the embedded model, because its texts or numbers matter.
EMBEDDED_FILES = {
    "test_accuracy.py",
    "test_docs.py",
    "test_perplexity.py",
    "test_sampling_fields.py",
    "test_snapshots.py",
    "test_structured.py",
    "test_watermark.py",
}


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
    shallow = Path(os.environ[PACKED_WEIGHTS]) / "shallow.gguf"
    if not shallow.exists():
        harness.write_shallow(shallow)
    Trunkline.default_model = str(shallow)
    # Otherwise xdist begins with the files that contain most tests.
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the longest files first and keeps the order within each file."""
    places = {name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path.name, len(places)))


@pytest.fixture(scope="session")
def embedded() -> Iterator[Trunkline]:
    """A default server on the embedded model, shared by tests that leave it intact."""
    with serving(model=EMBEDDED) as running:
        yield running


@pytest.fixture(scope="session")
def shallow() -> Iterator[Trunkline]:
    """A default server on the shallow model, shared by tests that leave it intact."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Trunkline:
    """The default server of the file's model."""
    running: Trunkline = request.getfixturevalue("embedded" if request.path.name in EMBEDDED_FILES else "shallow")
    return running


@pytest.fixture(scope="session")
def chunking() -> Iterator[Trunkline]:
    """A second server on the shallow model, which splits every prompt into chunks of at most 37 tokens."""
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
