"""Damaged files, cut anywhere or with any bit flipped, are read or raise TrunklineError, and need little memory."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.drawn import DRAWN
from tests.models.tiny import TinyModels
from tests.tiers import IS_FULL
from tests.weights.gguf_files import write_model
from trunkline_server.errors import DamagedFile, ModelNotFound, TrunklineError
from trunkline_server.models.rope import rope
from trunkline_server.weights.checkpoint import open_checkpoint
from trunkline_server.weights.dequantize import dequantize

# The files have about 400 KiB; decoding one weight takes less than this.
MAX_ALLOCATED_BYTES = 4 << 20
# `make test` tries only every n-th case.
STRIDE = 1 if IS_FULL else 6


@pytest.fixture(scope="module")
def gguf_bytes(tiny_model: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_model(tiny_model("llama3"), tmp_path_factory.mktemp("g") / "m.gguf", "Q8_0").read_bytes()


@pytest.fixture(scope="module")
def safetensors_folder(tiny_model: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, bytes]:
    """Returns a folder for damaged files, the intact weights and the intact config."""
    source = tiny_model("smollm3").folder
    weights, config = (source / "model.safetensors").read_bytes(), (source / "config.json").read_bytes()
    return tmp_path_factory.mktemp("s"), weights, config


@pytest.fixture
def bounded_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def read_all(path: Path) -> TrunklineError | None:
    """Opens a model and decodes every weight; returns the error if it was refused."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            with np.errstate(all="ignore"):  # a flipped scale may be infinite
                values = dequantize(checkpoint.tensor(name))
            assert values.shape == checkpoint.tensor(name).shape
        refusal = None
    except TrunklineError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 800
        refusal = error
    assert tracemalloc.get_traced_memory()[1] - before < MAX_ALLOCATED_BYTES
    return refusal


def flip(content: bytes, bits: list[int]) -> bytes:
    damaged = bytearray(content)
    for bit in bits:
        damaged[bit // 8 % len(damaged)] ^= 1 << (bit % 8)
    return bytes(damaged)


def test_a_gguf_file_cut_anywhere_is_refused(gguf_bytes: bytes, tmp_path: Path, bounded_memory: None) -> None:
    path = tmp_path / "m.gguf"
    lengths = [*range(300), *np.linspace(300, len(gguf_bytes) - 1, 300).astype(int).tolist()]
    for length in lengths[::STRIDE]:
        path.write_bytes(gguf_bytes[:length])
        assert isinstance(read_all(path), DamagedFile), length
    path.write_bytes(gguf_bytes)
    assert read_all(path) is None


@DRAWN
@given(bits=st.lists(st.integers(0, 8 * 4096 - 1), min_size=1, max_size=8))
def test_flipped_bits_in_a_gguf_header_never_crash(
    gguf_bytes: bytes, tmp_path: Path, bounded_memory: None, bits: list[int]
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(flip(gguf_bytes, bits))
    read_all(path)


def test_each_flipped_bit_of_the_first_bytes_of_a_gguf_file(
    gguf_bytes: bytes, tmp_path: Path, bounded_memory: None
) -> None:
    path = tmp_path / "m.gguf"
    # Five and eight are coprime, so each bit of a byte is flipped.
    refused, step = 0, 1 if IS_FULL else 5
    for bit in range(0, 8 * 120, step):
        path.write_bytes(flip(gguf_bytes, [bit]))
        refused += read_all(path) is not None
    # Most of these bits are magic, version, counts, lengths and types.
    assert refused > 400 // step


@DRAWN
@given(position=st.integers(0, 1 << 30), junk=st.binary(min_size=1, max_size=64))
def test_junk_written_over_a_gguf_header_never_crashes(
    gguf_bytes: bytes, tmp_path: Path, bounded_memory: None, position: int, junk: bytes
) -> None:
    path = tmp_path / "m.gguf"
    position %= 8192
    path.write_bytes(gguf_bytes[:position] + junk + gguf_bytes[position + len(junk) :])
    read_all(path)


def test_a_safetensors_file_cut_anywhere_is_refused(
    safetensors_folder: tuple[Path, bytes, bytes], bounded_memory: None
) -> None:
    folder, weights, config = safetensors_folder
    (folder / "config.json").write_bytes(config)
    for length in np.unique(np.geomspace(1, len(weights) - 1, 200).astype(int)).tolist()[::STRIDE]:
        (folder / "model.safetensors").write_bytes(weights[:length])
        assert isinstance(read_all(folder), DamagedFile), length
    (folder / "model.safetensors").write_bytes(weights)
    assert read_all(folder) is None


@DRAWN
@given(bits=st.lists(st.integers(0, 8 * 5000 - 1), min_size=1, max_size=4))
def test_flipped_bits_in_a_safetensors_header_never_crash(
    safetensors_folder: tuple[Path, bytes, bytes], bounded_memory: None, bits: list[int]
) -> None:
    folder, weights, config = safetensors_folder
    (folder / "config.json").write_bytes(config)
    (folder / "model.safetensors").write_bytes(flip(weights, bits))
    read_all(folder)


@DRAWN
@given(bits=st.lists(st.integers(0, 1 << 20), min_size=1, max_size=4), cut=st.integers(0, 5000))
def test_a_damaged_config_never_crashes(
    safetensors_folder: tuple[Path, bytes, bytes], bounded_memory: None, bits: list[int], cut: int
) -> None:
    folder, weights, config = safetensors_folder
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "config.json").write_bytes(flip(config, bits)[: cut or None])
    read_all(folder)


ABSURD = [
    None, True, False, 0, -1, 3, 1 << 31, 1 << 60, -(10**30), 10**400, 0.5, -1e-300, 1e308, float("nan"), float("inf"),
    "", "x" * 5000, "silu", [], [0, 1, 2], [[]], [1] * 5000, {}, {"rope_type": 1}, {"rope_type": "yarn", "factor": -1},
    {"rope_type": "yarn", "factor": 1e308, "rope_theta": 1.0000001}, {"rope_type": "llama3", "factor": 0},
    {"rope_theta": 10**500}, {"type": "linear", "factor": float("nan")},
    {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 0, "beta_fast": 0, "beta_slow": -1},
]  # fmt: skip


def test_absurd_values_in_a_config_never_crash(
    safetensors_folder: tuple[Path, bytes, bytes], bounded_memory: None
) -> None:
    folder, weights, config = safetensors_folder
    (folder / "model.safetensors").write_bytes(weights)
    values = json.loads(config)
    keys = [*values, "rope_scaling", "rope_theta", "partial_rotary_factor", "quantization_config", "head_dim"]
    refused = 0
    for number, key in enumerate(keys):
        # Each key gets another part of the values.
        for absurd in ABSURD[number % STRIDE :: STRIDE]:
            (folder / "config.json").write_text(json.dumps({**values, key: absurd}))
            try:
                checkpoint = open_checkpoint(folder)
            except TrunklineError as error:
                assert "\n" not in str(error)
                assert len(str(error)) < 800
                refused += 1
            else:
                assert all(np.isfinite(rope(checkpoint.config).inv_freq)), (key, absurd)
    assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED_BYTES
    assert refused > len(keys) * 5 // STRIDE


def test_an_empty_folder_is_not_found(tmp_path: Path, bounded_memory: None) -> None:
    assert isinstance(read_all(tmp_path), ModelNotFound)
