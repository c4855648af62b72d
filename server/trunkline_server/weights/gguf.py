"""Reads GGUF files, versions 2 and 3, little-endian.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

    magic, version, num_tensors, num_metadata
    metadata: key, type, value                 arrays are checked here and decoded on request
    tensor infos: name, shape, type, offset    offsets count from the data section
    padding up to `general.alignment`
    data section                               mapped, never copied

The file is not trusted. Each count and length is checked against a named limit and against the rest of the file before
anything is allocated for it, so memory stays within a small multiple of the header's size.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trunkline_server import _kernels
from trunkline_server.errors import DamagedFile, UnsupportedFormat, quoted
from trunkline_server.weights.mapping import MappedFile
from trunkline_server.weights.tensor import FORMATS, MAX_DIMENSIONS, Tensor, stored_bytes

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Limits on what a header may claim. The largest published models stay below a tenth of each.
MAX_TENSORS = 1 << 16
MAX_METADATA = 1 << 12
MAX_KEY_BYTES = (1 << 16) - 1  # the format's own limit
MAX_TENSOR_NAME_BYTES = 1 << 10
MAX_STRING_BYTES = 1 << 22
MAX_ARRAY_LENGTH = 1 << 24
MAX_ARRAY_DEPTH = 4
MAX_ALIGNMENT = 1 << 16

# Ids of tensor types as in ggml.h. Only those of `FORMATS` are supported; the others have names for the error message.
TENSOR_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K",
    12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

SCALARS = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 10: struct.Struct("<Q"),
    11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
BOOL, STRING, ARRAY = 7, 8, 9
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

Scalar = int | float | bool | str


@dataclass(frozen=True, slots=True)
class GgufArray:
    """An array in the metadata, checked to lie inside the file but not decoded."""

    element_type: int
    length: int
    offset: int


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The location of a tensor. shape: outermost first; offset: absolute, in bytes."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class GgufFile:
    """A GGUF file. The constructor reads and checks metadata and tensor infos; the data is mapped.

    Raises ModelNotFound, DamagedFile (with the file, the fault and its offset) or UnsupportedFormat.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = MappedFile(path)
        cursor = _Cursor(self._file)
        num_tensors, num_metadata = _read_counts(cursor)
        self._metadata: dict[str, Scalar | GgufArray] = {}
        self._stored: dict[str, tuple[int, int]] = {}
        for _ in range(num_metadata):
            key = cursor.string("a metadata key", MAX_KEY_BYTES)
            if key in self._metadata:
                raise cursor.damaged(f"metadata key {quoted(key)} is repeated")
            begin = cursor.offset
            self._metadata[key] = cursor.value(cursor.u32(), key)
            self._stored[key] = begin, cursor.offset
        infos = [_read_tensor_info(cursor) for _ in range(num_tensors)]
        alignment = self._alignment()
        data_offset = math.ceil(cursor.offset / alignment) * alignment
        self.tensors: dict[str, TensorInfo] = self._place(infos, alignment, data_offset)
        self.header_bytes = min(data_offset, self._file.num_bytes)

    @property
    def metadata(self) -> Mapping[str, Scalar | GgufArray]:
        return self._metadata

    @property
    def file(self) -> MappedFile:
        return self._file

    def tensor(self, name: str) -> Tensor:
        """Returns the tensor with this GGUF name as a view of the mapping. Raises KeyError."""
        info = self.tensors[name]
        return Tensor(
            name=name,
            format=info.format,
            shape=info.shape,
            data=self._file.bytes[info.offset : info.offset + info.num_bytes],
            is_mapped=True,
        )

    def stored_value(self, key: str) -> bytes:
        """Returns type and value of a metadata entry as they are stored. Raises KeyError."""
        begin, end = self._stored[key]
        return bytes(self._file.bytes[begin:end])

    def array(self, key: str) -> list[Scalar]:
        """Decodes a metadata array of scalars or strings. Raises KeyError, and DamagedFile if it is no such array."""
        value = self._metadata[key]
        if not isinstance(value, GgufArray) or value.element_type == ARRAY:
            raise DamagedFile(self.path, f"metadata key {quoted(key)} is not a flat array")
        cursor = _Cursor(self._file, value.offset)
        elements: list[Scalar] = []
        for _ in range(value.length):
            element = cursor.value(value.element_type, key)
            assert not isinstance(element, GgufArray)
            elements.append(element)
        return elements

    def _alignment(self) -> int:
        alignment = self._metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if (
            isinstance(alignment, bool)
            or not isinstance(alignment, int)
            or not 1 <= alignment <= MAX_ALIGNMENT
            or alignment.bit_count() != 1
        ):
            raise DamagedFile(
                self.path, f"`general.alignment` is {alignment!r}, not a power of two up to {MAX_ALIGNMENT}"
            )
        return alignment

    def _place(self, infos: list[TensorInfo], alignment: int, data_offset: int) -> dict[str, TensorInfo]:
        """Makes offsets absolute; checks that tensors lie inside the file, aligned, apart, and with unique names."""
        placed: dict[str, TensorInfo] = {}
        for info in infos:
            if info.name in placed:
                raise DamagedFile(self.path, f"tensor {quoted(info.name)} is repeated")
            if info.offset % alignment != 0:
                raise DamagedFile(
                    self.path,
                    f"tensor {quoted(info.name)} begins at offset {info.offset}, not a multiple of {alignment}",
                )
            begin = data_offset + info.offset
            if begin + info.num_bytes > self._file.num_bytes:
                raise DamagedFile(
                    self.path,
                    f"tensor {quoted(info.name)} takes bytes {begin} to {begin + info.num_bytes}, "
                    f"but the file has {self._file.num_bytes}",
                )
            placed[info.name] = TensorInfo(info.name, info.format, info.shape, begin, info.num_bytes)
        end, before = data_offset, ""
        for info in sorted(placed.values(), key=lambda info: info.offset):
            if info.offset < end:
                raise DamagedFile(
                    self.path, f"tensors {quoted(before)} and {quoted(info.name)} overlap at byte {info.offset}"
                )
            end, before = info.offset + info.num_bytes, info.name
        return placed


class _Cursor:
    """Reads forward through the header, never past the end of the file."""

    def __init__(self, file: MappedFile, offset: int = 0) -> None:
        self.path = file.path
        self._buffer = file.buffer
        self._end = file.num_bytes
        self.offset = offset

    def damaged(self, what: str) -> DamagedFile:
        return DamagedFile(self.path, f"{what} (at byte {self.offset} of {self._end})")

    def need(self, num_bytes: int, what: str) -> None:
        if num_bytes > self._end - self.offset:
            raise self.damaged(f"{what} needs {num_bytes} bytes, but {self._end - self.offset} are left")

    def skip(self, num_bytes: int, what: str) -> None:
        self.need(num_bytes, what)
        self.offset += num_bytes

    def raw(self, num_bytes: int, what: str) -> bytes:
        self.need(num_bytes, what)
        begin, self.offset = self.offset, self.offset + num_bytes
        return self._buffer[begin : self.offset]

    def u32(self, what: str = "a 32-bit number") -> int:
        self.need(4, what)
        number: int = _U32.unpack_from(self._buffer, self.offset)[0]
        self.offset += 4
        return number

    def u64(self, what: str = "a 64-bit number") -> int:
        self.need(8, what)
        number: int = _U64.unpack_from(self._buffer, self.offset)[0]
        self.offset += 8
        return number

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> str:
        num_bytes = self.u64(what)
        if num_bytes > limit:
            raise self.damaged(f"{what} claims {num_bytes} bytes, but the limit is {limit}")
        try:
            return self.raw(num_bytes, what).decode("utf-8")
        except UnicodeDecodeError:
            raise self.damaged(f"{what} is not UTF-8") from None

    def value(self, value_type: int, key: str) -> Scalar | GgufArray:
        """Reads a metadata value of the given type. Arrays are checked and skipped."""
        what = f"the value of {quoted(key)}"
        if (scalar := SCALARS.get(value_type)) is not None:
            self.need(scalar.size, what)
            number: int | float = scalar.unpack_from(self._buffer, self.offset)[0]
            self.offset += scalar.size
            return number
        if value_type == BOOL:
            byte = self.raw(1, what)[0]
            if byte > 1:
                raise self.damaged(f"{what} is {byte}, not a boolean")
            return byte == 1
        if value_type == STRING:
            return self.string(what)
        if value_type == ARRAY:
            return self._array(what, depth=1)
        raise self.damaged(f"{what} has the unknown type {value_type}")

    def _array(self, what: str, *, depth: int) -> GgufArray:
        if depth > MAX_ARRAY_DEPTH:
            raise self.damaged(f"{what} nests arrays deeper than {MAX_ARRAY_DEPTH}")
        element_type, length = self.u32(what), self.u64(what)
        if length > MAX_ARRAY_LENGTH:
            raise self.damaged(f"{what} claims {length} elements, but the limit is {MAX_ARRAY_LENGTH}")
        array = GgufArray(element_type, length, self.offset)
        if (scalar := SCALARS.get(element_type)) is not None:
            self.skip(length * scalar.size, what)
        elif element_type == BOOL:
            self.skip(length, what)
        elif element_type == STRING:
            self._skip_strings(length, what)
        elif element_type == ARRAY:
            self.need(length * 12, what)
            for _ in range(length):
                self._array(what, depth=depth + 1)
        else:
            raise self.damaged(f"{what} has elements of the unknown type {element_type}")
        return array

    def _skip_strings(self, length: int, what: str) -> None:
        self.need(length * 8, what)
        self.offset, num_skipped = _kernels.skip_strings(self._buffer, self.offset, length, MAX_STRING_BYTES)
        if num_skipped < length:
            if self._end - self.offset >= 8 and (num_bytes := self.u64(what)) > MAX_STRING_BYTES:
                raise self.damaged(f"a string in {what} claims {num_bytes} bytes, but the limit is {MAX_STRING_BYTES}")
            raise self.damaged(f"{what} ends in the middle of its strings")


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Reads magic and version; returns the numbers of tensors and metadata entries."""
    if cursor.raw(4, "the magic") != MAGIC:
        raise UnsupportedFormat(
            f"`{cursor.path}` is not a GGUF file", hint="give a GGUF file or a folder with `config.json`"
        )
    version = cursor.u32("the version")
    if version not in VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS:
            raise UnsupportedFormat(
                f"`{cursor.path}` is a big-endian GGUF file, which is not supported",
                hint="convert it to little-endian",
            )
        raise UnsupportedFormat(
            f"`{cursor.path}` has GGUF version {version}, but supported are {' and '.join(map(str, VERSIONS))}",
            hint="convert the model again with a current tool",
        )
    num_tensors, num_metadata = cursor.u64("the tensor count"), cursor.u64("the metadata count")
    if num_tensors > MAX_TENSORS:
        raise cursor.damaged(f"the header claims {num_tensors} tensors, but the limit is {MAX_TENSORS}")
    if num_metadata > MAX_METADATA:
        raise cursor.damaged(f"the header claims {num_metadata} metadata entries, but the limit is {MAX_METADATA}")
    return num_tensors, num_metadata


def _read_tensor_info(cursor: _Cursor) -> TensorInfo:
    """Reads one tensor info; its offset still counts from the data section."""
    name = cursor.string("a tensor name", MAX_TENSOR_NAME_BYTES)
    num_dimensions = cursor.u32(f"tensor {quoted(name)}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise cursor.damaged(
            f"tensor {quoted(name)} claims {num_dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}"
        )
    # The file has them innermost first.
    shape = tuple(cursor.u64(f"the shape of tensor {quoted(name)}") for _ in range(num_dimensions))[::-1]
    type_id = cursor.u32(f"the type of tensor {quoted(name)}")
    offset = cursor.u64(f"the offset of tensor {quoted(name)}")
    format_name = TENSOR_TYPES.get(type_id)
    if format_name is None:
        raise cursor.damaged(f"tensor {quoted(name)} has the unknown type {type_id}")
    if format_name not in FORMATS:
        raise UnsupportedFormat(
            f"tensor {quoted(name)} of `{cursor.path}` is stored as {format_name}, which is not supported",
            hint=f"supported formats are {', '.join(FORMATS)}",
        )
    if 0 in shape:
        raise cursor.damaged(f"tensor {quoted(name)} has the empty shape {list(shape)}")
    try:
        num_bytes = stored_bytes(format_name, shape)
    except ValueError as error:
        raise cursor.damaged(f"tensor {quoted(name)} is stored as {format_name}, but its {error}") from None
    return TensorInfo(name, format_name, shape, offset, num_bytes)
