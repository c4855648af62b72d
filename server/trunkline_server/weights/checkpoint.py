"""A model on disk: its config, and its weights under their safetensors names, whatever the file format."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from trunkline_server.errors import DamagedFile, ModelNotFound, UnsupportedArchitecture, UnsupportedFormat, quoted
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.config_gguf import RopeFactors, config_from_gguf
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.places import Place
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.affine import decoded, decoded_format
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.fingerprint import PageSums, fingerprint_bytes
from trunkline_server.weights.gguf import GgufArray, GgufFile
from trunkline_server.weights.gguf_splits import open_splits
from trunkline_server.weights.identity import SourceIdentity, identify
from trunkline_server.weights.mapping import MappedFile
from trunkline_server.weights.mxfp4 import Mxfp4Stack
from trunkline_server.weights.places import (
    gguf_place,
    has_offset,
    interleaved_heads,
    rows_in_order,
    safetensors_places,
)
from trunkline_server.weights.pooling import open_modules, stated_pooling
from trunkline_server.weights.quantization import Mxfp4, Quantization, parse_quantization
from trunkline_server.weights.quantized_parts import Part, check_finite, part_suffixes, quantized_shape
from trunkline_server.weights.safetensors import SafetensorsFile, open_shards, read_json_object
from trunkline_server.weights.selected_parts import selected
from trunkline_server.weights.tensor import EncodedTensor, Tensor, Weight

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
# Matrices that may have one row. GGUF lacks their first dimension then.
ROWS = ("ffn_gate_inp_shexp.weight", "cls.output.weight", "token_types.weight")
# Integers as wide as the elements of these formats.
_ELEMENTS = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}


class Checkpoint(Protocol):
    """Config and weights of one model. Complete: every weight of `weight_shapes(config)` is present in its shape."""

    config: ModelConfig
    path: Path
    # The scheme of quantised linear modules; None if there are none, and for GGUF files, whose tensors have a format
    # instead.
    quantization: Quantization | None

    def names(self) -> Sequence[str]:
        """Returns the names of all weights of the model, in the order of the forward pass.

        Includes `lm_head.weight` even if the head is tied; `tensor` then returns the embedding under its own name.
        """

    def tensor(self, name: str) -> Tensor:
        """Returns the weight with this name.

        It is a view of the mapped file, except for some norms and for queries that lie between keys and values; see
        `places.py`, also for `interleaved_heads`. If the head is tied, `tensor("lm_head.weight").name` is
        "model.embed_tokens.weight".
        A weight that has `parts` is decoded by each call; see `affine.py`. Raises KeyError for a name that is not in
        `names()`, and UnsupportedFormat.
        """

    def encoded(self, name: str) -> Weight:
        """Returns the weight with this name as `tensor` does, but one that must be decoded or copied is read later.

        A start that finds the packed weights in the cache never reads it.
        """

    def stored_parts(self, name: str) -> Mapping[str, Part]:
        """Returns the tensors of the quantised module that a weight belongs to, by suffix; see `quantized_parts.py`.

        Weights that the file joins have the same ones. Empty if the weight is one tensor. Raises KeyError.
        """

    def parts(self, name: str) -> Mapping[str, Part]:
        """Returns the tensors that encode this weight alone, with its rows in the model's order.

        Views of the mapped file, or copies if the file joins the weight with others or stores its rows in another
        order. Empty if the weight is one tensor. Raises KeyError, UnsupportedFormat, and DamagedFile for scales that
        are not finite.
        """

    def fingerprint(self, page_sums: PageSums | None = None) -> str:
        """Returns a hash of all bytes of weights and config files; see `fingerprint.py` for its guarantees."""

    def identity(self) -> SourceIdentity:
        """Identifies the same content without reading all bytes; see `identity.py` for its guarantees."""


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Opens a `.gguf` file or a folder with `config.json` and safetensors, and checks that the model is complete.

    Raises ModelNotFound, DamagedFile, UnsupportedFormat or UnsupportedArchitecture.
    """
    path = Path(path)
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    if not path.is_file():
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise ModelNotFound(f"`{path}` {what}", hint="give a `.gguf` file or a folder with `config.json`")
    if path.suffix == ".safetensors":
        raise UnsupportedFormat(f"`{path}` holds weights without a config", hint="give its folder, with `config.json`")
    return GgufCheckpoint(path)


class GgufCheckpoint:
    """A checkpoint in one GGUF file, or in several that `gguf-split` has made of one: `files`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = open_splits(path)
        self._holders = {name: file for file in self.files for name in file.tensors}
        shapes = {name: file.tensors[name].shape for name, file in self._holders.items()}
        for name, shape in shapes.items():
            if name.endswith(ROWS) and len(shape) == 1:
                shapes[name] = (1, *shape)
        self.config = _config(self.files[0], self._holders, shapes)
        _check_layers(path, self.config, len(self._holders))
        self._expected = weight_shapes(self.config)
        self._places = {name: gguf_place(name, self.config, self._holders) for name in self._expected}
        for found in self._places.values():
            if found.flattens and found.tensor in shapes:
                shapes[found.tensor] = (math.prod(shapes[found.tensor]),)
        self._shapes = shapes
        self._names = _check_complete(path, self.config, self._places, shapes)
        self.quantization: Quantization | None = None

    def names(self) -> Sequence[str]:
        return self._names

    def place(self, name: str) -> Place:
        """Returns the place of a weight in the files. Raises KeyError."""
        return self._places[_resolve(self.config, name)]

    def encoded(self, name: str) -> Weight:
        name = _resolve(self.config, name)
        place, shape = self._places[name], self._expected[name]
        if not place.is_copied or len(shape) == 1:
            return self.tensor(name)
        stored_as = self._holders[place.tensor].tensors[place.tensor].format
        stored_as = _transposed_format(stored_as) if place.transposes_rows else stored_as
        heads = interleaved_heads(name, self.config, is_gguf=True)
        return EncodedTensor(name, stored_as, shape, partial(self.tensor, name), heads)

    def stored_parts(self, name: str) -> Mapping[str, Part]:
        if _resolve(self.config, name) not in self._places:
            raise KeyError(name)
        return {}

    def parts(self, name: str) -> Mapping[str, Part]:
        return self.stored_parts(name)

    def tensor(self, name: str) -> Tensor:
        name = _resolve(self.config, name)
        place = self._places[name]
        tensor = replace(self._holders[place.tensor].tensor(place.tensor), shape=self._shapes[place.tensor])
        tensor = _part(tensor, place)
        if place.is_exponential:
            tensor = self._logarithm(tensor)
        return replace(tensor, name=name, interleaved_heads=interleaved_heads(name, self.config, is_gguf=True))

    def _logarithm(self, tensor: Tensor) -> Tensor:
        """Returns the logarithm of the negated elements as F32. Raises DamagedFile."""
        values = -dequantize(tensor)
        if not ((values > 0) & np.isfinite(values)).all():
            raise DamagedFile(self.path, f"tensor `{tensor.name}` has elements that are not negative numbers")
        return replace(tensor, format="F32", data=np.log(values).view(np.uint8).reshape(-1), is_mapped=False)

    def fingerprint(self, page_sums: PageSums | None = None) -> str:
        return fingerprint_bytes([file.file.bytes for file in self.files], page_sums)

    def identity(self) -> SourceIdentity:
        return identify([(file.file, file.header_bytes) for file in self.files])


class SafetensorsCheckpoint:
    """A checkpoint in a folder with `config.json` and safetensors."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config_path = path / "config.json"
        if not config_path.exists():
            raise ModelNotFound(
                f"folder `{path}` has no `config.json`", hint="give a `.gguf` file or a folder with `config.json`"
            )
        values = read_json_object(config_path)
        try:
            self.config = config_from_json(config_path, values)
        except UnsupportedArchitecture as error:
            error.hint = f"{error.hint}; or try `--backend transformers`"
            raise
        self.quantization = parse_quantization(config_path, values)
        if not (path / "model.safetensors").exists() and not (path / "model.safetensors.index.json").exists():
            raise ModelNotFound(
                f"folder `{path}` has neither `model.safetensors` nor `model.safetensors.index.json`",
                hint="convert the weights to safetensors; pickle files are never read",
            )
        self._holders: dict[str, SafetensorsFile] = open_shards(path)
        self.config = stated_pooling(self.config, config_path, values, _HEAD in self._holders)
        self._holders |= open_modules(path, self.config)
        shapes = {name: file.tensors[name].shape for name, file in self._holders.items()}
        _check_layers(path, self.config, len(self._holders))
        self._expected = names = weight_shapes(self.config)
        self._places = safetensors_places(names, self.config, self._holders)
        for place in self._places.values():
            if place.flattens and place.tensor in shapes:
                shapes[place.tensor] = (math.prod(shapes[place.tensor]),)
        self._parts = self._find_parts()
        for name, parts in self._parts.items():
            assert self.quantization is not None, "parts are only found under a scheme"
            shape = quantized_shape(path, self.quantization, name.removesuffix(".weight"), parts)
            shapes[self._places[name].tensor] = shape
        stacks = self._find_stacks()
        shapes |= {tensor: stack.shape for tensor, stack in stacks.items()}
        self._shapes = shapes
        self._names = _check_complete(path, self.config, self._places, shapes)
        self._parts |= {
            name: stacks[place.tensor].parts(place) for name, place in self._places.items() if place.tensor in stacks
        }

    def _find_parts(self) -> dict[str, Mapping[str, Part]]:
        """Maps the weight of each quantised module to its parts."""
        if self.quantization is None:
            return {}
        dtypes = {name: file.tensors[name].dtype for name, file in self._holders.items()}
        found: dict[str, Mapping[str, Part]] = {}
        for name, place in self._places.items():
            if place.subtracts_rows:
                continue
            module = place.tensor.removesuffix(".weight")
            suffixes = part_suffixes(self.quantization, module, dtypes)
            if suffixes and place.index is not None:
                raise UnsupportedFormat(
                    f"module {quoted(module)} of `{self.path}` stacks the experts and is quantised with the scheme in "
                    "`quantization_config`, which is not supported",
                    hint="use the unquantised model or a GGUF file",
                )
            if suffixes:
                found[name] = {suffix: self._part(f"{module}.{suffix}") for suffix in suffixes}
        return found

    def _find_stacks(self) -> dict[str, Mxfp4Stack]:
        """Returns the stacks in MXFP4 by the names of the tensors that they stand for."""
        if not isinstance(self.quantization, Mxfp4):
            return {}

        def find(name: str) -> Part | None:
            return self._part(name) if name in self._holders else None

        stacks = {place.tensor for place in self._places.values() if place.is_transposed}
        return {name: Mxfp4Stack(self.path, name, find) for name in sorted(stacks - self._holders.keys())}

    def _part(self, name: str) -> Part:
        return self._holders[name].part(name)

    def names(self) -> Sequence[str]:
        return self._names

    def encoded(self, name: str) -> Weight:
        name, parts = _resolve(self.config, name), self.stored_parts(name)
        place, shape = self._places[name], self._expected[name]
        if not parts and (not place.is_copied or len(shape) == 1):
            return self.tensor(name)
        heads = None
        if parts:
            assert self.quantization is not None, "parts are only found under a scheme"
            num_inputs = shape[0] if place.transposes_rows else shape[1]
            stored_as = decoded_format(self.quantization, parts, num_inputs=num_inputs)
        else:
            stored_as = self._holders[place.tensor].tensors[place.tensor].dtype
            heads = interleaved_heads(name, self.config, is_gguf=False)
        stored_as = _transposed_format(stored_as) if place.transposes_rows else stored_as
        return EncodedTensor(name, stored_as, shape, partial(self.tensor, name), heads)

    def stored_parts(self, name: str) -> Mapping[str, Part]:
        name = _resolve(self.config, name)
        if name not in self._places:
            raise KeyError(name)
        return self._parts.get(name, {})

    def parts(self, name: str) -> Mapping[str, Part]:
        parts = self.stored_parts(name)
        check_finite(self.path, parts)
        # The parts of a stack's matrix are already its own.
        if not parts or isinstance(self.quantization, Mxfp4):
            return parts
        assert self.quantization is not None, "parts are only found under a scheme"
        place = self._places[name]
        num_rows = self._shapes[place.tensor][0]
        rows = np.concatenate([np.arange(begin, end) for begin, end in place.rows or [(0, num_rows)]])
        if (heads := interleaved_heads(name, self.config, is_gguf=False)) is not None:
            rows = rows_in_order(rows, *heads)
        if np.array_equal(rows, np.arange(num_rows)):
            return parts
        return selected(self.quantization, name, parts, rows, num_rows)

    def tensor(self, name: str) -> Tensor:
        name = _resolve(self.config, name)
        if name in self._parts:
            assert self.quantization is not None, "parts are only found under a scheme"
            tensor = decoded(self.quantization, name, self.parts(name))
            return _transposed(tensor) if self._places[name].transposes_rows else tensor
        place = self._places[name]
        tensor = _part(self._holders[place.tensor].tensor(place.tensor), place)
        tensor = replace(tensor, name=name, interleaved_heads=interleaved_heads(name, self.config, is_gguf=False))
        return _plus_one(tensor) if has_offset(name, self.config) else tensor

    def fingerprint(self, page_sums: PageSums | None = None) -> str:
        return fingerprint_bytes([self._config_file().bytes, *(file.file.bytes for file in self._files())], page_sums)

    def identity(self) -> SourceIdentity:
        return identify([(file.file, file.header_bytes) for file in self._files()], [self._config_file()])

    def _config_file(self) -> MappedFile:
        return MappedFile(self.path / "config.json")

    def _files(self) -> list[SafetensorsFile]:
        files = {str(file.path.relative_to(self.path)): file for file in self._holders.values()}
        return [files[name] for name in sorted(files)]


def _plus_one(tensor: Tensor) -> Tensor:
    """Adds 1 to a norm's weight and returns it as F32; see `places.py`."""
    return _floats(tensor.name, dequantize(tensor) + np.float32(1.0))


def _floats(name: str, values: NDArray[np.float32]) -> Tensor:
    return Tensor(name=name, format="F32", shape=values.shape, data=values.view(np.uint8).reshape(-1))


def _resolve(config: ModelConfig, name: str) -> str:
    """Returns the name under which a weight is stored: the embedding's for a tied head."""
    return _EMBEDDING if name == _HEAD and config.tie_word_embeddings else name


def _part(tensor: Tensor, place: Place) -> Tensor:
    """Returns the part of a tensor at its place. Rows that do not follow each other are copied."""
    if place.index is not None:
        tensor = tensor.part(place.index)
    if place.is_transposed or place.step > 1:
        return _strided(tensor, place)
    if place.flattens:
        return replace(tensor, shape=(math.prod(tensor.shape),))
    if not place.rows:
        return tensor
    runs = [tensor.rows(begin, end) for begin, end in place.rows]
    if place.subtracts_rows:
        first, second = (dequantize(run) for run in runs)
        return _floats(tensor.name, first - second)
    if place.transposes_rows:
        return _transposed(*runs)
    if len(runs) == 1:
        return runs[0]
    data = np.concatenate([np.frombuffer(run.data, np.uint8) for run in runs])
    shape = (sum(run.shape[0] for run in runs), *tensor.shape[1:])
    return replace(tensor, shape=shape, data=data, is_mapped=False)


def _transposed_format(format_name: str) -> str:
    """Returns the format of a transpose. Quantised formats have groups along rows, so they become F16."""
    return format_name if format_name in _ELEMENTS else "F16"


def _transposed(tensor: Tensor) -> Tensor:
    if (stored_as := _transposed_format(tensor.format)) != tensor.format:
        data = dequantize(tensor).astype(np.float16).view(np.uint8).reshape(-1)
        tensor = replace(tensor, format=stored_as, data=data)
    values = np.frombuffer(tensor.data, _ELEMENTS[tensor.format]).reshape(tensor.shape)
    data = np.ascontiguousarray(values.T).view(np.uint8).reshape(-1)
    return replace(tensor, shape=tensor.shape[::-1], data=data, is_mapped=False)


def _strided(tensor: Tensor, place: Place) -> Tensor:
    """Copies rows that lie apart, or across the tensor's rows. Its format is one of floats."""
    elements = np.frombuffer(tensor.data, np.uint8).reshape(*tensor.shape, -1)
    if place.is_transposed:
        elements = elements.swapaxes(0, 1)
    begin, end = place.rows[0] if place.rows else (0, len(elements))
    elements = elements[begin : end : place.step]
    data = np.ascontiguousarray(elements).reshape(-1)
    data.flags.writeable = False
    return replace(tensor, shape=elements.shape[:-1], data=data, is_mapped=False)


def _check_layers(path: Path, config: ModelConfig, num_tensors: int) -> None:
    """Raises DamagedFile if there are fewer tensors than layers, before millions of names are made for these."""
    if config.num_layers > num_tensors:
        raise DamagedFile(path, f"the config has {config.num_layers} layers, but the files have {num_tensors} tensors")


def _check_complete(
    path: Path, config: ModelConfig, places: Mapping[str, Place], found: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Compares the shapes of the file's tensors with those that the config requires, and returns the names of weights.

    Raises DamagedFile.
    """
    expected = weight_shapes(config)
    needed = _needed_shapes(config, expected, places)
    for tensor, shape in needed.items():
        if tensor not in found:
            raise DamagedFile(path, f"tensor `{tensor}` is missing", hint="the download may be incomplete")
        if found[tensor] != shape:
            raise DamagedFile(
                path, f"tensor `{tensor}` has shape {list(found[tensor])}, expected {list(shape)} from the config"
            )
    return tuple(expected)


def _needed_shapes(
    config: ModelConfig, expected: Mapping[str, tuple[int, ...]], places: Mapping[str, Place]
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes that the tensors of a file must have."""
    rows: dict[str, int] = {}
    stacks: dict[str, int] = {}
    transposed: set[str] = set()
    others: dict[str, tuple[int, ...]] = {}
    for name in expected:
        place, shape = places[_resolve(config, name)], expected[_resolve(config, name)]
        shape = shape[::-1] if place.transposes_rows else shape
        end = place.num_rows or (place.rows[-1][1] if place.rows else shape[0])
        rows[place.tensor] = max(rows.get(place.tensor, 0), end)
        others[place.tensor] = shape[1:]
        if place.index is not None:
            stacks[place.tensor] = max(stacks.get(place.tensor, 0), place.index + 1)
        if place.is_transposed:
            transposed.add(place.tensor)
    needed: dict[str, tuple[int, ...]] = {}
    for tensor, count in rows.items():
        whole = (*others[tensor], count) if tensor in transposed else (count, *others[tensor])
        needed[tensor] = (stacks[tensor], *whole) if tensor in stacks else whole
    return needed


def _config(file: GgufFile, holders: Mapping[str, GgufFile], shapes: Mapping[str, tuple[int, ...]]) -> ModelConfig:
    """Reads the config from the metadata of a model's first file."""
    # A config uses no other arrays.
    prefix = f"{file.metadata.get('general.architecture')}.attention"
    keys = [f"{prefix}.{key}" for key in ("head_count_kv", "recurrent_layers", "sliding_window_pattern")]
    arrays = {key: file.array(key) for key in keys if isinstance(file.metadata.get(key), GgufArray)}
    return config_from_gguf(
        file.path,
        {**file.metadata, **arrays},
        num_rows=lambda name: (*shapes[name], 1)[0] if name in shapes else None,
        rope_factors=RopeFactors(
            all=_rope_factors(holders, "rope_freqs.weight"),
            long=_rope_factors(holders, "rope_factors_long.weight"),
            short=_rope_factors(holders, "rope_factors_short.weight"),
        ),
    )


def _rope_factors(holders: Mapping[str, GgufFile], name: str) -> tuple[float, ...] | None:
    """Reads factors of rotary frequencies; None if there are none with this name."""
    if name not in holders:
        return None
    tensor = holders[name].tensor(name)
    if tensor.format != "F32" or len(tensor.shape) != 1 or tensor.num_elements > 1 << 10:
        raise DamagedFile(
            holders[name].path, f"tensor `{name}` is {tensor.format} {list(tensor.shape)}, expected a short F32 row"
        )
    return struct.unpack(f"<{tensor.num_elements}f", bytes(tensor.data))
