"""Reads safetensors files, single or sharded by `model.safetensors.index.json`.

Format: https://github.com/huggingface/safetensors#format. This reader replaces the `safetensors` package because numpy
has no bfloat16 and the weights must stay mapped and unconverted.

    num_header_bytes: u64 little-endian
    header: JSON, name -> {"dtype", "shape", "data_offsets": [begin, end]}
    data: covered exactly by the tensors, without holes
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from trunkline_server.errors import DamagedFile, UnsupportedFormat, quoted
from trunkline_server.weights.mapping import MappedFile
from trunkline_server.weights.quantized_parts import Part
from trunkline_server.weights.tensor import FORMATS, MAX_DIMENSIONS, Tensor

MAX_HEADER_BYTES = 100_000_000  # the format's own limit
MAX_JSON_BYTES = 1 << 26  # of `config.json` and the index
MAX_SHARDS = 1 << 12
MAX_TENSORS = 1 << 20
MAX_COUNT = 1 << 62  # of a dimension or an offset

# Bytes per element of the format's dtypes, except those smaller than a byte. Only those of `FORMATS` become tensors.
_DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The location of a tensor. offset: absolute, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class SafetensorsFile:
    """One safetensors file. The constructor reads and checks the header; the data is mapped.

    prefix: precedes the names of tensors, to tell files of several modules apart.
    Raises ModelNotFound, DamagedFile (with the file and the fault) or UnsupportedFormat.
    """

    def __init__(self, path: Path, prefix: str = "") -> None:
        self.path = path
        self._file = MappedFile(path)
        if self._file.num_bytes < 8:
            raise DamagedFile(path, f"the file has {self._file.num_bytes} bytes, but its header takes at least 8")
        num_header_bytes = int.from_bytes(self._file.buffer[:8], "little")
        if num_header_bytes > MAX_HEADER_BYTES:
            raise DamagedFile(path, f"the header claims {num_header_bytes} bytes, but the limit is {MAX_HEADER_BYTES}")
        self.header_bytes = 8 + num_header_bytes
        if self.header_bytes > self._file.num_bytes:
            raise DamagedFile(
                path, f"the header claims {num_header_bytes} bytes, but the file has {self._file.num_bytes}"
            )
        header = parse_json_object(path, self._file.buffer[8 : self.header_bytes], "the header")
        header.pop("__metadata__", None)
        if len(header) > MAX_TENSORS:
            raise DamagedFile(path, f"the header names {len(header)} tensors, but the limit is {MAX_TENSORS}")
        self.tensors = {prefix + name: self._info(name, entry) for name, entry in header.items()}
        self._check_coverage()

    @property
    def file(self) -> MappedFile:
        return self._file

    def tensor(self, name: str) -> Tensor:
        """Returns a tensor as a view of the mapping. Raises KeyError, UnsupportedFormat."""
        info = self.tensors[name]
        if info.dtype not in FORMATS:
            raise UnsupportedFormat(
                f"tensor {quoted(name)} of `{self.path}` is stored as {info.dtype}, which is not supported",
                hint="supported formats are F32, F16, BF16",
            )
        data = self._file.bytes[info.offset : info.offset + info.num_bytes]
        return Tensor(name=name, format=info.dtype, shape=info.shape, data=data, is_mapped=True)

    def part(self, name: str) -> Part:
        """Returns a tensor of any dtype as a view of the mapping. Raises KeyError."""
        info = self.tensors[name]
        data = self._file.bytes[info.offset : info.offset + info.num_bytes]
        return Part(name, info.dtype, info.shape, data)

    def _info(self, name: str, entry: object) -> TensorInfo:
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise DamagedFile(self.path, f"tensor {quoted(name)} lacks `dtype`, `shape` or `data_offsets`")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str):
            raise DamagedFile(self.path, f"tensor {quoted(name)} has a `dtype` that is not a string")
        if dtype not in _DTYPE_BYTES:
            raise UnsupportedFormat(
                f"tensor {quoted(name)} of `{self.path}` is stored as {quoted(dtype)}, which is not supported",
                hint="supported formats are F32, F16, BF16",
            )
        if not _counts(shape) or len(shape) > MAX_DIMENSIONS:
            raise DamagedFile(
                self.path, f"tensor {quoted(name)} has a `shape` that is not a list of at most {MAX_DIMENSIONS} counts"
            )
        if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise DamagedFile(self.path, f"tensor {quoted(name)} has `data_offsets` that are not [begin, end]")
        begin, end = offsets
        if self.header_bytes + end > self._file.num_bytes:
            raise DamagedFile(
                self.path,
                f"tensor {quoted(name)} ends at byte {self.header_bytes + end} of {self._file.num_bytes}",
            )
        num_bytes = math.prod(shape) * _DTYPE_BYTES[dtype]
        if end - begin != num_bytes:
            raise DamagedFile(
                self.path,
                f"tensor {quoted(name)} of shape {shape} takes {num_bytes} bytes as {dtype}, not {end - begin}",
            )
        return TensorInfo(dtype, tuple(shape), self.header_bytes + begin, num_bytes)

    def _check_coverage(self) -> None:
        end, before = self.header_bytes, ""
        for name, info in sorted(self.tensors.items(), key=lambda item: (item[1].offset, item[1].num_bytes)):
            if info.offset < end:
                raise DamagedFile(
                    self.path, f"tensors {quoted(before)} and {quoted(name)} overlap at byte {info.offset}"
                )
            if info.offset > end:
                raise DamagedFile(self.path, f"no tensor covers bytes {end} to {info.offset}")
            end, before = info.offset + info.num_bytes, name
        if end != self._file.num_bytes:
            raise DamagedFile(self.path, f"the tensors end at byte {end}, but the file has {self._file.num_bytes}")


def open_shards(folder: Path) -> dict[str, SafetensorsFile]:
    """Opens the model in `folder` and returns, for each tensor name, the file that holds it.

    Reads `model.safetensors.index.json` if it exists, otherwise `model.safetensors`.
    Raises ModelNotFound, DamagedFile or UnsupportedFormat.
    """
    index_path = folder / "model.safetensors.index.json"
    if not index_path.exists():
        whole = SafetensorsFile(folder / "model.safetensors")
        return dict.fromkeys(whole.tensors, whole)
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict):
        raise DamagedFile(index_path, "`weight_map` is missing or not an object")
    files: dict[str, SafetensorsFile] = {}
    holders: dict[str, SafetensorsFile] = {}
    for name, file_name in weight_map.items():
        if not isinstance(file_name, str) or not _is_plain_file_name(file_name):
            raise DamagedFile(
                index_path,
                f"tensor {quoted(name)} is mapped to {quoted(str(file_name))}, which is not a plain file name",
            )
        if file_name not in files:
            if len(files) == MAX_SHARDS:
                raise DamagedFile(index_path, f"`weight_map` names more than {MAX_SHARDS} files")
            if not (folder / file_name).is_file():
                raise DamagedFile(
                    index_path, f"tensor {quoted(name)} is mapped to {quoted(file_name)}, which does not exist"
                )
            files[file_name] = SafetensorsFile(folder / file_name)
        if name not in files[file_name].tensors:
            raise DamagedFile(index_path, f"tensor {quoted(name)} is not in {quoted(file_name)}")
        holders[name] = files[file_name]
    return holders


def read_json_object(path: Path) -> dict[str, object]:
    """Reads a JSON file that holds an object. Raises ModelNotFound or DamagedFile."""
    file = MappedFile(path)
    if file.num_bytes > MAX_JSON_BYTES:
        raise DamagedFile(path, f"the file has {file.num_bytes} bytes, but the limit is {MAX_JSON_BYTES}")
    return parse_json_object(path, file.buffer[:], "the file")


def parse_json_object(path: Path, raw: bytes, what: str) -> dict[str, object]:
    """Parses a JSON object without repeated keys. what: names the text in errors. Raises DamagedFile."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        keys: dict[str, object] = dict(pairs)
        if len(keys) != len(pairs):
            raise ValueError("a key is repeated")
        return keys

    try:
        parsed = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise DamagedFile(path, f"{what} nests too deeply") from None
    except ValueError as error:  # bad UTF-8, bad JSON, a repeated key, a number of absurd length
        raise DamagedFile(path, f"{what} is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise DamagedFile(path, f"{what} is not a JSON object")
    return parsed


def _counts(numbers: object) -> bool:
    """Returns True for a list of integers from 0 to `MAX_COUNT`. Booleans do not count as integers."""
    return isinstance(numbers, list) and all(type(number) is int and 0 <= number <= MAX_COUNT for number in numbers)


def _is_plain_file_name(name: str) -> bool:
    """Returns True for a name that cannot lead out of the folder."""
    return name not in ("", ".", "..") and not any(char in "/\\\0" for char in name)
