"""Identities of weights, computed without reading all bytes."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest
from tests.models.tiny import TinyModels
from tests.weights.gguf_files import write_model
from trunkline_server.weights import identity as module
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.identity import SourceIdentity, identify
from trunkline_server.weights.mapping import MappedFile


def identity_of(path: Path, header_bytes: int = 16) -> SourceIdentity:
    return identify([(MappedFile(path), header_bytes)])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(range(256)) * 16 * 300)  # 300 pages, more than are sampled
    return path


def test_an_untouched_file_keeps_its_identity_under_any_folder(path: Path) -> None:
    expected = identity_of(path)
    assert identity_of(path).digest == expected.digest
    folder = path.parent / "other"
    folder.mkdir()
    moved = path.rename(folder / path.name)
    # Renaming changes the status time, so a moved file gets a new identity. A link leads to the same file.
    assert identity_of(moved).digest != expected.digest
    assert not expected.still_holds()


@pytest.mark.parametrize("offset", [0, 5000, 100_000, 300 * 4096 - 1])
def test_a_change_in_place_with_restored_times_is_detected(path: Path, offset: int) -> None:
    before = path.stat()
    expected = identity_of(path)
    # Waits until the file system's clock has advanced; `is_settled` covers changes before that.
    deadline = time.monotonic() + 10
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        assert time.monotonic() < deadline
        with path.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 1]))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns, after.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    assert identity_of(path).digest != expected.digest
    assert not expected.still_holds()


def test_a_replaced_file_is_detected(path: Path) -> None:
    expected = identity_of(path)
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.replace(path)
    assert identity_of(path).digest != expected.digest
    assert not expected.still_holds()
    path.unlink()
    assert not expected.still_holds()


def test_a_file_that_changed_just_now_is_not_settled(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed_ns = path.stat().st_ctime_ns
    for age_ns, is_settled in [(0, False), (20_000_000, False), (1_000_000_000, True), (-1_000_000_000, False)]:
        monkeypatch.setattr(module.time, "time_ns", lambda age_ns=age_ns: changed_ns + age_ns)
        assert identity_of(path).is_settled is is_settled, age_ns


def test_samples_and_header_are_covered_whatever_the_times(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "stamp", lambda status: (status.st_size,))
    original = path.read_bytes()
    seen = {identity_of(path).digest}
    # Header; first, second and last sample, which are every fourth page from the end.
    for offset in (3, 3 * 4096, 7 * 4096 + 9, 299 * 4096):
        changed = bytearray(original)
        changed[offset] ^= 1
        path.write_bytes(changed)
        seen.add(identity_of(path).digest)
    assert len(seen) == 5
    path.write_bytes(original)
    assert identity_of(path).digest in seen


@pytest.mark.parametrize("num_bytes", [1, 4095, 4096, 4097, 64 * 4096, 65 * 4096 + 1, 10_000 * 4096])
def test_samples_are_few_and_reach_the_end(num_bytes: int) -> None:
    offsets = list(module._sample_offsets(num_bytes))
    assert 1 <= len(offsets) <= 2 * module.NUM_SAMPLES
    assert offsets[0] >= 0 and offsets[-1] == (num_bytes - 1) // 4096 * 4096


def test_checkpoints_have_the_identity_of_all_their_files(tiny_model: TinyModels, tmp_path: Path) -> None:
    model = tiny_model("qwen3")
    gguf = write_model(model, tmp_path / "m.gguf")
    assert open_checkpoint(gguf).identity().digest == open_checkpoint(gguf).identity().digest
    copy = Path(shutil.copytree(model.folder, tmp_path / "m"))
    expected = open_checkpoint(copy).identity().digest
    assert open_checkpoint(copy).identity().digest == expected
    (copy / "config.json").write_text((copy / "config.json").read_text() + "\n")
    assert open_checkpoint(copy).identity().digest != expected
