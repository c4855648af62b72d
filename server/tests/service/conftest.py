from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.backend import FakeBackend
from tests.fakes.shard import Client, Shard, serve


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """Yields a folder with a short path, because a socket's path may have only about a hundred bytes."""
    with tempfile.TemporaryDirectory(prefix="tl-") as folder:
        yield Path(folder)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend()


@pytest.fixture
def shard(backend: FakeBackend, socket_folder: Path) -> Iterator[Shard]:
    with serve(backend, socket_folder / "shard.sock") as shard:
        yield shard
        assert shard.bugs.empty(), shard.bugs.get()


@pytest.fixture
def client(shard: Shard) -> Iterator[Client]:
    with Client(shard.socket_path) as client:
        yield client
