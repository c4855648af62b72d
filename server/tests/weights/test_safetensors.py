"""The safetensors reader on files of the `safetensors` package, and on invalid headers made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.weights.test_gguf import assert_refused
from trunkline_server.errors import DamagedFile, ModelNotFound, UnsupportedFormat
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.safetensors import SafetensorsFile, open_shards


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_each_dtype_is_read_as_it_was_written(dtype: torch.dtype, tmp_path: Path) -> None:
    torch.manual_seed(2)
    tensors = {"b.weight": torch.randn(5, 7).to(dtype), "a.bias": torch.randn(3).to(dtype)}
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert file.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        read = file.tensor(name)
        assert read.shape == tuple(tensor.shape)
        assert read.data.readonly
        np.testing.assert_array_equal(dequantize(read), tensor.float().numpy())


def test_other_dtypes_are_refused_only_when_asked_for(tmp_path: Path) -> None:
    save_file({"ids": torch.arange(4), "w": torch.ones(2)}, tmp_path / "m.safetensors")
    file = SafetensorsFile(tmp_path / "m.safetensors")
    assert file.tensor("w").num_elements == 2
    with pytest.raises(UnsupportedFormat, match=r"`ids` .* is stored as I64"):
        file.tensor("ids")


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def pack(header: object, data: bytes = bytes(8)) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


HUGE = 1 << 60
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "short": (b"abc", "the file has 3 bytes"),
    "header of 2^60 bytes": (
        HUGE.to_bytes(8, "little") + bytes(64),
        f"claims {HUGE} bytes, but the limit is 100000000",
    ),
    "header past the end": ((5000).to_bytes(8, "little") + bytes(64), "claims 5000 bytes, but the file has 72"),
    "header that is not UTF-8": (pack(b"\xff\xff"), "not valid JSON"),
    "header that is not JSON": (pack(b"{'a'}"), "not valid JSON"),
    "header that is a list": (pack([1]), "not a JSON object"),
    "header nested without end": (pack(b"[" * 100_000), "nests too deeply"),
    "number of 5000 digits": (pack(b'{"a": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "repeated name": (pack(b'{"a": 1, "a": 2}'), "a key is repeated"),
    "tensor that is a number": (pack({"a": 1}), "lacks `dtype`, `shape` or `data_offsets`"),
    "tensor without a shape": (pack({"a": {"dtype": "F32", "data_offsets": [0, 8]}}), "lacks"),
    "dtype that is a number": (pack({"a": entry(dtype=3)}), "`dtype` that is not a string"),  # type: ignore[arg-type]
    "negative dimension": (pack({"a": entry(shape=[-2])}), "not a list of at most 8 counts"),
    "fractional dimension": (pack({"a": entry(shape=[2.0])}), "not a list of at most 8 counts"),
    "boolean dimension": (pack({"a": entry(shape=[True])}), "not a list of at most 8 counts"),
    "dimension of 4000 digits": (pack({"a": entry(shape=[10**4000])}), "not a list of at most 8 counts"),
    "nine dimensions": (pack({"a": entry(shape=[1] * 9)}), "not a list of at most 8 counts"),
    "2^480 elements": (pack({"a": entry(shape=[HUGE] * 8)}), "bytes as F32, not 8"),
    "three offsets": (pack({"a": entry(offsets=[0, 4, 8])}), "not [begin, end]"),
    "offsets that fall": (pack({"a": entry(offsets=[8, 0])}), "not [begin, end]"),
    "offsets past the end": (pack({"a": entry(offsets=[0, 16], shape=[4])}), "ends at byte"),
    "shape that disagrees": (pack({"a": entry(shape=[3])}), "takes 12 bytes as F32, not 8"),
    "tensors that overlap": (pack({"a": entry(), "b": entry()}), "tensors `a` and `b` overlap"),
    "hole before": (pack({"a": entry(offsets=[4, 12])}, bytes(12)), "no tensor covers bytes"),
    "bytes after": (pack({"a": entry()}, bytes(12)), "the tensors end at byte"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_damaged_file_is_refused_with_what_is_wrong(case: str, tmp_path: Path) -> None:
    content, says = BAD_FILES[case]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    assert_refused(path, DamagedFile, says, SafetensorsFile)


def test_an_unknown_dtype_is_named(tmp_path: Path) -> None:
    path = tmp_path / "new.safetensors"
    path.write_bytes(pack({"a": entry(dtype="F4")}))
    with pytest.raises(UnsupportedFormat, match="stored as `F4`"):
        SafetensorsFile(path)


def write_shards(folder: Path, weight_map: Any, files: dict[str, dict[str, torch.Tensor]]) -> None:
    for name, tensors in files.items():
        save_file(tensors, folder / name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_shards_are_joined_by_the_index(tmp_path: Path) -> None:
    files = {"one.safetensors": {"a": torch.ones(2)}, "two.safetensors": {"b": torch.zeros(3), "c": torch.ones(1)}}
    write_shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors", "c": "two.safetensors"}, files)
    holders = open_shards(tmp_path)
    assert {name: file.path.name for name, file in holders.items()} == {
        "a": "one.safetensors",
        "b": "two.safetensors",
        "c": "two.safetensors",
    }
    assert holders["b"] is holders["c"]


@pytest.mark.parametrize(
    ("weight_map", "says"),
    [
        (None, "`weight_map` is missing"),
        ([1], "`weight_map` is missing"),
        ({"a": 5}, "not a plain file name"),
        ({"a": "../one.safetensors"}, "not a plain file name"),
        ({"a": "/etc/passwd"}, "not a plain file name"),
        ({"a": ""}, "not a plain file name"),
        ({"a": ".."}, "not a plain file name"),
        ({"a": "absent.safetensors"}, "does not exist"),
        ({"absent": "one.safetensors"}, "tensor `absent` is not in `one.safetensors`"),
    ],
)
def test_a_damaged_index_is_refused(weight_map: Any, says: str, tmp_path: Path) -> None:
    write_shards(tmp_path, weight_map, {"one.safetensors": {"a": torch.ones(2)}})
    with pytest.raises(DamagedFile) as caught:
        open_shards(tmp_path)
    assert says in str(caught.value)
    assert "model.safetensors.index.json" in str(caught.value)


def test_a_folder_without_weights_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"model\.safetensors"):
        open_shards(tmp_path)
