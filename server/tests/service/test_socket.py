"""The socket file: its mode, stale sockets, and other files at its path."""

from __future__ import annotations

import socket
import stat
from pathlib import Path

import pytest
from tests.fakes.backend import FakeBackend
from tests.fakes.shard import Client, Shard, serve
from trunkline_server.errors import InvalidArgument


def test_only_the_user_may_open_the_socket(shard: Shard) -> None:
    assert stat.S_IMODE(shard.socket_path.stat().st_mode) == 0o600


def test_a_stale_socket_is_replaced_and_removed_at_the_end(socket_folder: Path) -> None:
    path = socket_folder / "shard.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with serve(FakeBackend(), path), Client(path) as client:
        assert client.describe().contract_version == 13
    assert not path.exists()


def test_names_that_look_like_escapes_are_not_decoded(socket_folder: Path) -> None:
    path = socket_folder / "50%41 off.sock"
    with serve(FakeBackend(), path):
        assert path.is_socket()


def test_another_file_at_the_socket_path_is_not_touched(socket_folder: Path) -> None:
    path = socket_folder / "shard.sock"
    path.write_text("precious")
    with pytest.raises(InvalidArgument, match="exists and is not a socket"), serve(FakeBackend(), path):
        pass
    assert path.read_text() == "precious"


def test_a_socket_in_use_is_refused(shard: Shard) -> None:
    with pytest.raises(InvalidArgument, match="another process listens"), serve(FakeBackend(), shard.socket_path):
        pass


@pytest.mark.parametrize(
    ("name", "expected"), [("x" * 120, "but the system allows 107"), ("missing/shard.sock", "does not exist")]
)
def test_paths_that_cannot_hold_a_socket_are_refused(socket_folder: Path, name: str, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected), serve(FakeBackend(), socket_folder / name):
        pass
