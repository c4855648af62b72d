"""The checked-in stubs match shard.proto."""

from __future__ import annotations

import runpy
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[3]


def test_generated_stubs_are_not_stale(tmp_path: Path) -> None:
    script = runpy.run_path(str(REPOSITORY / "scripts" / "gen_proto.py"))
    script["generate"](tmp_path)
    fresh = {path.name: path.read_text() for path in (tmp_path / script["PACKAGE_PATH"]).iterdir()}
    folder = REPOSITORY / "server" / script["PACKAGE_PATH"]
    checked_in = {p.name: p.read_text() for p in folder.iterdir() if p.is_file() and p.name != "__init__.py"}
    assert checked_in == fresh, "the stubs are stale; hint: run `make proto`"
