"""Models that need no Hub: the embedded one, folders and files."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from trunkline_server import hub
from trunkline_server.errors import InvalidArgument, ModelNotFound, UnsupportedFormat


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a folder; Python finds packages only there."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    importlib.invalidate_caches()
    return tmp_path


def test_no_model_means_the_embedded_one_and_does_not_import_its_package(packages: Path) -> None:
    package = packages / hub.EMBEDDED_PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this package needs a compiler')")
    (package / hub.EMBEDDED_FILE).write_bytes(b"GGUF")
    resolved = hub.resolve(None)
    assert resolved.path == package / hub.EMBEDDED_FILE
    assert resolved.model_id == "HuggingFaceTB/SmolLM2-135M-Instruct"


def test_a_missing_embedded_model_has_a_hint_how_to_get_it(packages: Path) -> None:
    with pytest.raises(ModelNotFound, match="--no-deps"):
        hub.resolve(None)


def test_paths_resolve_to_themselves(tmp_path: Path) -> None:
    gguf = tmp_path / "tiny.gguf"
    gguf.write_bytes(b"GGUF")
    assert hub.resolve(str(gguf)) == hub.ResolvedModel(gguf, "tiny")
    assert hub.resolve(str(tmp_path)).path == gguf
    gguf.unlink()
    for number in (2, 1):
        (tmp_path / f"large-0000{number}-of-00002.gguf").write_bytes(b"GGUF")
    assert hub.resolve(str(tmp_path)).path == tmp_path / "large-00001-of-00002.gguf"
    (tmp_path / "config.json").write_text("{}")
    assert hub.resolve(str(tmp_path)) == hub.ResolvedModel(tmp_path, tmp_path.name)


def test_paths_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="has neither `config"):
        hub.resolve(str(tmp_path))
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(InvalidArgument, match="has 2 `"):
        hub.resolve(str(tmp_path))
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(UnsupportedFormat, match="is not a `"):
        hub.resolve(str(tmp_path / "pytorch_model.bin"))
    for absent in (str(tmp_path / "absent"), "absent.gguf", "./absent", "a/b/c", "~nobody/absent", "../x"):
        with pytest.raises(ModelNotFound, match="does not exist"):
            hub.resolve(absent)


def test_a_local_model_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="`--revision` is `main`"):
        hub.resolve(str(tmp_path), revision="main")
