"""The second start maps what the first one packed, with the same bits; any fault of the cache is a miss."""

from __future__ import annotations

import logging
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.cpu.test_cpu_backend import PROMPT
from tests.cpu.tiny_backend import build_tiny, start
from tests.models.tiny import TinyModels
from tests.weights.quantized_files import write_quantized
from trunkline_server.backends.cpu.backend import CpuBackend
from trunkline_server.backends.cpu.weight_cache import default_folder
from trunkline_server.errors import UnsupportedFormat
from trunkline_server.weights import affine
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.tensor import Tensor

DEADLINE_S = 30.0


@pytest.fixture
def model(tiny_model: TinyModels) -> Path:
    """Returns a model whose files are old enough to be cached."""
    path = tiny_model("llama3").folder
    deadline = time.monotonic() + DEADLINE_S
    while not open_checkpoint(path).identity().is_settled:
        assert time.monotonic() < deadline
    return path


def same_bits(a: CpuBackend, b: CpuBackend) -> bool:
    return a.info == b.info and np.array_equal(a.score(PROMPT), b.score(PROMPT))


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records if "weights" in record.getMessage()]
    caplog.clear()
    return found


@pytest.fixture(autouse=True)
def every_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_the_second_start_maps_and_gives_the_same_bits(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "a/b"
    without = start(model, None)
    assert messages(caplog) == ["weights packed"]
    first = start(model, folder)
    assert messages(caplog) == ["weights packed", "packed weights cached"]
    second = start(model, folder)
    assert messages(caplog) == ["weights mapped"]
    assert same_bits(first, without) and same_bits(second, without)
    # Threads and limits of a step do not affect the packed weights.
    assert start(model, folder, threads=2, max_step_tokens=64).info.weight_bytes == first.info.weight_bytes
    assert messages(caplog) == ["weights mapped"]


def test_a_start_from_the_cache_decodes_nothing(
    tiny_model: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    quantized, folder = tmp_path / "m", tmp_path / "cache"
    write_quantized(tiny_model("phi3").folder, quantized, "gptq")
    deadline = time.monotonic() + DEADLINE_S
    while not open_checkpoint(quantized).identity().is_settled:
        assert time.monotonic() < deadline

    def broken(scheme: object, name: str, parts: object) -> Tensor:
        raise UnsupportedFormat(f"decoded {name}")

    with monkeypatch.context() as context:
        context.setattr(affine, "decoded", broken)
        with pytest.raises(UnsupportedFormat, match=r"decoded model\.layers\.0\.self_attn\.q_proj\.weight"):
            start(quantized, folder)
    first = start(quantized, folder)
    monkeypatch.setattr(affine, "decoded", broken)
    second = start(quantized, folder)
    assert messages(caplog)[-1] == "weights mapped"
    assert same_bits(first, second)


def test_gguf_rows_come_out_in_order_from_the_file_and_from_the_cache(
    embedded_gguf: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert open_checkpoint(embedded_gguf).tensor("model.layers.0.self_attn.q_proj.weight").interleaved_heads == (64, 64)
    with_cache = {"max_batch_total_tokens": 512, "block_size": 32}
    first, second = start(embedded_gguf, tmp_path, **with_cache), start(embedded_gguf, tmp_path, **with_cache)
    assert messages(caplog) == ["weights packed", "packed weights cached", "weights mapped"]
    assert np.array_equal(first.score([1, 2, 3, 40_000]), second.score([1, 2, 3, 40_000]))


def test_a_changed_model_is_packed_again(
    tiny_model: TinyModels, model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    del model
    import shutil

    copy = Path(shutil.copytree(tiny_model("llama3").folder, tmp_path / "m"))
    weights = copy / "model.safetensors"

    def settle() -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not open_checkpoint(copy).identity().is_settled:
            assert time.monotonic() < deadline

    settle()
    before = start(copy, tmp_path / "cache")
    changed = bytearray(weights.read_bytes())
    changed[-2] ^= 0x40
    with weights.open("r+b") as file:
        file.write(changed)
    settle()
    messages(caplog)
    after = start(copy, tmp_path / "cache")
    assert messages(caplog) == ["weights packed", "packed weights cached"]
    assert after.info.numeric_fingerprint != before.info.numeric_fingerprint
    assert same_bits(after, start(copy, None))


def test_a_model_that_changes_while_loading_is_not_cached(
    tiny_model: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    import shutil

    copy = Path(shutil.copytree(tiny_model("llama3").folder, tmp_path / "m"))
    deadline = time.monotonic() + DEADLINE_S
    while not (checkpoint := open_checkpoint(copy)).identity().is_settled:
        assert time.monotonic() < deadline
    backend = build_tiny(checkpoint, weights_cache=tmp_path / "cache")  # type: ignore[arg-type]
    (copy / "model.safetensors").touch()
    backend.after_start()
    assert "have changed since they were opened" in messages(caplog)[-1]
    assert not (tmp_path / "cache").exists()


def test_a_damaged_file_is_a_warning_and_is_replaced(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = start(model, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) * 2 // 3] ^= 4
    for bad in (b"", whole[:100], whole[:-1], whole + b"\0", bytes(flipped), b"something else" * 1000):
        file.write_bytes(bad)
        messages(caplog)
        assert same_bits(start(model, tmp_path), good)
        warning, *rest = messages(caplog)
        assert warning.startswith("ignoring the cache of packed weights: "), warning
        assert rest == ["weights packed", "packed weights cached"]
        assert file.read_bytes() == whole


def test_an_unwritable_folder_only_disables_the_cache(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    # Even root cannot create files in such a system file system.
    for folder in (tmp_path / "file", Path("/proc/self/fdinfo"), Path("/proc/self/fdinfo/below")):
        assert same_bits(start(model, folder), start(model, None))
        assert any(line.startswith("cannot cache the packed weights: ") for line in messages(caplog))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_read_only_folder_is_read(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    start(model, tmp_path)
    tmp_path.chmod(0o500)
    messages(caplog)
    start(model, tmp_path)
    assert messages(caplog) == ["weights mapped"]


def test_a_full_disk_leaves_nothing_behind(model: Path, tmp_path: Path) -> None:
    """A limit on the size of files simulates a full disk: the system refuses the same writes."""
    folder = tmp_path / "cache"
    program = """
import logging, resource, sys
from pathlib import Path
from tests.cpu.tiny_backend import start
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stdout)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
start(Path(sys.argv[1]), Path(sys.argv[2]))
"""
    command = [sys.executable, "-c", program, str(model), str(folder)]
    server = Path(__file__).resolve().parents[2]
    done = subprocess.run(command, cwd=server, capture_output=True, text=True, check=True, timeout=120)
    assert "cannot cache the packed weights: cannot " in done.stdout, done
    assert list(folder.iterdir()) == []
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 20_000


def test_two_starts_at_once_share_one_file(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    both = [build_tiny(open_checkpoint(model), weights_cache=tmp_path) for _ in range(2)]  # type: ignore[arg-type]
    assert messages(caplog) == ["weights packed"] * 2
    for backend in both:
        backend.after_start()
    lines = [record for record in caplog.records if record.getMessage() == "packed weights cached"]
    kept = [getattr(record, "fields", {})["mib"] == "cached by another process" for record in lines]
    assert kept == [False, True]
    assert len(list(tmp_path.iterdir())) == 1
    assert same_bits(*both)


def test_the_default_folder_belongs_to_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/u")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    assert default_folder() == Path("/c/trunkline/weights")
    for ignored in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert default_folder() == Path("/u/.cache/trunkline/weights")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    assert default_folder() is None
