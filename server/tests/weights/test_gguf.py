"""The GGUF reader on files from the `gguf` package, and on invalid headers made by hand."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.weights.random_groups import random_groups
from trunkline_server.errors import DamagedFile, ModelNotFound, UnsupportedFormat
from trunkline_server.weights.dequantize import UNPACKED_FORMATS, dequantize
from trunkline_server.weights.gguf import GgufArray, GgufFile
from trunkline_server.weights.tensor import FORMATS

MAX_ALLOCATED_BYTES = 4 << 20
# The package can only dequantise these formats, so random bits replace what it cannot write.
ONLY_READ = ("IQ4_NL", "IQ4_XS", "Q3_K", "Q4_K", "Q5_K", "Q6_K", *UNPACKED_FORMATS)


def raw_matrix(format_name: str, rows: int, columns: int) -> np.ndarray:
    """Returns bytes [rows, row_bytes] of a random matrix in a format."""
    if format_name in ONLY_READ:
        num_groups = rows * columns // FORMATS[format_name].group_elements
        return random_groups(format_name, num_groups, seed=3).reshape(rows, -1)
    generator = np.random.default_rng(3)
    values = generator.standard_normal((rows, columns)).astype(np.float32)
    return gguf.quantize(values, gguf.GGMLQuantizationType[format_name]).view(np.uint8)


def write_gguf(path: Path, format_name: str = "F32", alignment: int | None = None) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(3)
    writer.add_rope_freq_base(10_000.0)
    writer.add_bool("a.bool", True)
    writer.add_int8("an.i8", -5)
    writer.add_uint64("a.u64", 1 << 63)
    writer.add_float64("a.f64", 0.1)
    writer.add_array("some.integers", [1, -2, 3])
    writer.add_array("some.flags", [True, False])
    writer.add_array("some.strings", ["eins", "zwei", "три"])
    stored_as = gguf.GGMLQuantizationType[format_name]
    matrix = raw_matrix(format_name, 6, 512)
    if format_name in ("F32", "F16"):
        matrix = matrix.view({"F32": np.float32, "F16": np.float16}[format_name])
    writer.add_tensor("matrix", matrix, raw_dtype=stored_as)
    writer.add_tensor("row", np.arange(5, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("format_name", FORMATS)
def test_a_file_of_each_format_is_read_as_the_gguf_package_reads_it(format_name: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", format_name)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    ours = GgufFile(path)
    assert ours.tensors.keys() == theirs.keys()
    for name, tensor in theirs.items():
        read = ours.tensor(name)
        assert read.format == tensor.tensor_type.name
        assert read.shape == tuple(int(size) for size in tensor.shape[::-1])
        np.testing.assert_array_equal(read.data, np.asarray(tensor.data).view(np.uint8).reshape(-1))
        np.testing.assert_array_equal(dequantize(read), gguf.dequantize(tensor.data, tensor.tensor_type))
        assert read.data.readonly


def test_metadata_keeps_values_and_types(tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "model.gguf"))
    assert file.metadata["general.architecture"] == "llama"
    assert file.metadata["llama.block_count"] == 3
    assert file.metadata["a.bool"] is True
    assert file.metadata["an.i8"] == -5
    assert file.metadata["a.u64"] == 1 << 63
    assert file.metadata["a.f64"] == 0.1
    assert isinstance(file.metadata["some.strings"], GgufArray)
    assert file.array("some.integers") == [1, -2, 3]
    assert file.array("some.flags") == [True, False]
    assert file.array("some.strings") == ["eins", "zwei", "три"]
    with pytest.raises(DamagedFile, match="not a flat array"):
        file.array("a.f64")
    with pytest.raises(KeyError):
        file.array("absent")


@pytest.mark.parametrize("alignment", [32, 64, 4096])
def test_alignment_is_that_of_the_file(alignment: int, tmp_path: Path) -> None:
    file = GgufFile(write_gguf(tmp_path / "model.gguf", alignment=alignment))
    assert all(info.offset % alignment == 0 for info in file.tensors.values())
    np.testing.assert_array_equal(dequantize(file.tensor("row")), np.arange(5, dtype=np.float32))


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def header(num_tensors: int = 0, num_metadata: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, num_tensors, num_metadata)


def tensor_info(name: str, shape: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


def u32_entry(key: str, value: int) -> bytes:
    return text(key) + struct.pack("<II", 4, value)


def array_entry(element_type: int, length: int, elements: bytes = b"") -> bytes:
    return text("k") + struct.pack("<IIQ", 9, element_type, length) + elements


DATA = bytes(256)
HUGE = 1 << 60
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "three bytes": (b"GGU", "the magic needs 4 bytes, but 3 are left"),
    "2^60 tensors": (header(HUGE) + DATA, f"claims {HUGE} tensors"),
    "2^60 metadata entries": (header(0, HUGE) + DATA, f"claims {HUGE} metadata entries"),
    "more tensors than bytes": (header(60_000) + DATA, "dimensions, expected 1 to 8"),
    "key of 2^60 bytes": (header(0, 1) + struct.pack("<Q", HUGE) + DATA, f"a metadata key claims {HUGE} bytes"),
    "key past the end": (header(0, 1) + struct.pack("<Q", 5000) + DATA, "needs 5000 bytes, but 256 are left"),
    "key that is not UTF-8": (header(0, 1) + text(b"\xff\xfe") + DATA, "a metadata key is not UTF-8"),
    "string of 2^60 bytes": (
        header(0, 1) + text("k") + struct.pack("<IQ", 8, HUGE) + DATA,
        f"the value of `k` claims {HUGE} bytes",
    ),
    "value of an unknown type": (header(0, 1) + text("k") + struct.pack("<I", 77) + DATA, "unknown type 77"),
    "boolean that is none": (header(0, 1) + text("k") + struct.pack("<IB", 7, 2) + DATA, "is 2, not a boolean"),
    "array of 2^60 numbers": (header(0, 1) + array_entry(4, HUGE) + DATA, f"claims {HUGE} elements"),
    "array past the end": (header(0, 1) + array_entry(4, 1000) + DATA, "needs 4000 bytes, but 256 are left"),
    "array of strings past the end": (header(0, 1) + array_entry(8, 1000) + DATA, "needs 8000 bytes"),
    "array of strings that end early": (
        header(0, 1) + array_entry(8, 3, text("a" * 100) + text("b" * 160)),
        "ends in the middle of its strings",
    ),
    "array with a string of 2^60 bytes": (
        header(0, 1) + array_entry(8, 2, struct.pack("<Q", HUGE) + DATA),
        f"claims {HUGE} bytes",
    ),
    "array of unknown type": (header(0, 1) + array_entry(77, 1, DATA), "elements of the unknown type 77"),
    "arrays nested without end": (
        header(0, 1) + text("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000,
        "nests arrays deeper than 4",
    ),
    "2^60 nested arrays": (header(0, 1) + array_entry(9, 1 << 24, DATA), "needs 201326592 bytes"),
    "repeated key": (header(0, 2) + u32_entry("k", 1) + u32_entry("k", 2), "`k` is repeated"),
    "alignment 0": (header(0, 1) + u32_entry("general.alignment", 0), "`general.alignment` is 0"),
    "alignment 24": (header(0, 1) + u32_entry("general.alignment", 24), "not a power of two"),
    "alignment 2^31": (header(0, 1) + u32_entry("general.alignment", 1 << 31), "not a power of two up to 65536"),
    "tensor name of 2^60 bytes": (header(1) + struct.pack("<Q", HUGE) + DATA, f"a tensor name claims {HUGE} bytes"),
    "tensor of 1000 dimensions": (header(1) + text("t") + struct.pack("<I", 1000) + DATA, "claims 1000 dimensions"),
    "tensor of no dimension": (header(1) + text("t") + struct.pack("<I", 0) + DATA, "claims 0 dimensions"),
    "tensor of 2^60 elements": (header(1) + tensor_info("t", [HUGE]) + DATA, "but the file has"),
    "tensor of 2^480 elements": (header(1) + tensor_info("t", [HUGE] * 8) + DATA, "but the file has"),
    "tensor with an empty dimension": (header(1) + tensor_info("t", [0, 4]) + DATA, "empty shape"),
    "tensor of an unknown type": (header(1) + tensor_info("t", [4], 999) + DATA, "unknown type 999"),
    "tensor of broken groups": (header(1) + tensor_info("t", [33], 8) + DATA, "33 elements are not a multiple of 32"),
    "tensor at an odd offset": (header(1) + tensor_info("t", [4], offset=33) + DATA, "offset 33, not a multiple of 32"),
    "tensor past the end": (header(1) + tensor_info("t", [4], offset=1 << 62) + DATA, "but the file has"),
    "repeated tensor": (
        header(2) + tensor_info("t", [4]) + tensor_info("t", [4], offset=32) + DATA,
        "tensor `t` is repeated",
    ),
    "tensors that overlap": (
        header(2) + tensor_info("s", [16]) + tensor_info("t", [4], offset=32) + DATA,
        "tensors `s` and `t` overlap",
    ),
}


def assert_refused(path: Path, error: type[Exception], says: str, read: Callable[[Path], object] = GgufFile) -> None:
    """Asserts that reading fails with `error`, in one line with the file and `says`, and without much memory."""
    tracemalloc.start()
    try:
        with pytest.raises(error) as caught:
            read(path)
        assert tracemalloc.get_traced_memory()[1] < MAX_ALLOCATED_BYTES
    finally:
        tracemalloc.stop()
    message = str(caught.value)
    assert says in message
    assert str(path) in message
    assert "\n" not in message
    assert len(message) < 600 + len(str(path))


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_damaged_header_is_refused_with_what_is_wrong(case: str, tmp_path: Path) -> None:
    content, says = BAD_FILES[case]
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    assert_refused(path, DamagedFile, says)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04" + DATA, "is not a GGUF file; hint: give a GGUF file"),
        (header(version=1), "has GGUF version 1"),
        (header(version=4), "has GGUF version 4"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(1) + tensor_info("t", [256], 15) + DATA, "stored as Q8_K"),
    ],
)
def test_an_unsupported_format_is_named(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    assert_refused(path, UnsupportedFormat, says)


def test_version_2_is_read(tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    content = header(1, version=2) + tensor_info("t", [4])
    content += bytes(-len(content) % 32) + np.arange(4, dtype="<f4").tobytes()
    path.write_bytes(content)
    np.testing.assert_array_equal(dequantize(GgufFile(path).tensor("t")), [0, 1, 2, 3])


def test_names_from_a_damaged_file_are_shown_short_and_on_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(header(0, 1) + text("a\nb\x1b[31m" + "x" * 50_000) + struct.pack("<I", 77))
    assert_refused(path, DamagedFile, r"`a\nb\x1b[31mxxx")


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="does not exist"):
        GgufFile(tmp_path / "absent.gguf")
    with pytest.raises(ModelNotFound, match="cannot read"):
        GgufFile(tmp_path)
