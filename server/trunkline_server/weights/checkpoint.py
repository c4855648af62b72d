"""A model on disk: its config, and its weights under their safetensors names, whatever the file format."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np

from trunkline_server.errors import DamagedFile, ModelNotFound, UnsupportedFormat, quoted
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.config_gguf import config_from_gguf
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.fingerprint import PageSums, fingerprint_bytes
from trunkline_server.weights.gguf import GgufFile, TensorInfo
from trunkline_server.weights.identity import SourceIdentity, identify
from trunkline_server.weights.mapping import MappedFile
from trunkline_server.weights.naming import (
    OFFSET_NORM_ARCHITECTURES,
    PERMUTED_ARCHITECTURES,
    expert_names,
    is_norm,
    is_permuted,
    safetensors_name,
    stored_name,
)
from trunkline_server.weights.quantization import Quantization, parse_quantization
from trunkline_server.weights.quantized_parts import Part, part_suffixes, quantized_shape
from trunkline_server.weights.safetensors import SafetensorsFile, open_shards, read_json_object
from trunkline_server.weights.tensor import Tensor

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


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

        It is a view of the mapped file, except for Gemma's norms (see `naming.py`). `interleaved_head` is set for query
        and key projections of some GGUF files. If the head is tied, `tensor("lm_head.weight").name` is
        "model.embed_tokens.weight".
        Raises KeyError for a name that is not in `names()`, and UnsupportedFormat, also for a weight that has `parts`.
        """

    def parts(self, name: str) -> Mapping[str, Part]:
        """Returns the tensors that encode a weight of a quantised module, by suffix; see `quantized_parts.py`.

        Empty if the weight is one tensor. Raises KeyError.
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
    """A checkpoint in one GGUF file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = GgufFile(path)
        self.config = _config(self._file)
        self._is_permuted = self.config.architecture in PERMUTED_ARCHITECTURES
        self._gguf_names = {
            name: gguf_name
            for gguf_name in self._file.tensors
            if (name := safetensors_name(gguf_name, self.config.architecture)) is not None
        }
        shapes = {name: self._shape(gguf_name) for name, gguf_name in self._gguf_names.items()}
        # Maps the weight of an expert to the tensor that holds it, and its place there.
        self._experts: dict[str, tuple[str, int]] = {}
        for gguf_name, info in self._file.tensors.items():
            names = expert_names(gguf_name, self.config.num_experts)
            if names and (len(info.shape) != 3 or info.shape[0] != len(names)):
                raise DamagedFile(
                    path, f"tensor `{gguf_name}` has shape {list(info.shape)}, but there are {len(names)} experts"
                )
            self._experts |= {name: (gguf_name, place) for place, name in enumerate(names)}
            shapes |= dict.fromkeys(names, info.shape[1:])
        self._names = _check_complete(path, self.config, shapes)
        self.quantization: Quantization | None = None

    def _shape(self, gguf_name: str) -> tuple[int, ...]:
        """Returns the shape of a tensor in safetensors; GGUF lacks the first dimension of a matrix with one row."""
        shape = self._file.tensors[gguf_name].shape
        return (1, *shape) if gguf_name.endswith("ffn_gate_inp_shexp.weight") and len(shape) == 1 else shape

    def names(self) -> Sequence[str]:
        return self._names

    def parts(self, name: str) -> Mapping[str, Part]:
        if _resolve(self.config, name) not in self._gguf_names and name not in self._experts:
            raise KeyError(name)
        return {}

    def tensor(self, name: str) -> Tensor:
        name = _resolve(self.config, name)
        if name in self._experts:
            gguf_name, place = self._experts[name]
            return self._file.tensor(gguf_name).part(place, name)
        head_size = self.config.head_size if self._is_permuted and is_permuted(name) else None
        gguf_name = self._gguf_names[name]
        tensor = self._file.tensor(gguf_name)
        return replace(tensor, name=name, shape=self._shape(gguf_name), interleaved_head=head_size)

    def fingerprint(self, page_sums: PageSums | None = None) -> str:
        return fingerprint_bytes([self._file.file.bytes], page_sums)

    def identity(self) -> SourceIdentity:
        return identify([(self._file.file, self._file.header_bytes)])


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
        self.config = config_from_json(config_path, values)
        self.quantization = parse_quantization(config_path, values)
        if not (path / "model.safetensors").exists() and not (path / "model.safetensors.index.json").exists():
            raise ModelNotFound(
                f"folder `{path}` has neither `model.safetensors` nor `model.safetensors.index.json`",
                hint="convert the weights to safetensors; pickle files are never read",
            )
        self._holders: dict[str, SafetensorsFile] = open_shards(path)
        shapes = {name: file.tensors[name].shape for name, file in self._holders.items()}
        shapes |= {
            name: shapes[stored] for name in weight_shapes(self.config) if (stored := self._stored(name)) in shapes
        }
        self._parts = self._find_parts()
        for name, parts in self._parts.items():
            assert self.quantization is not None, "parts are only found under a scheme"
            shapes[name] = quantized_shape(path, self.quantization, name.removesuffix(".weight"), parts)
        self._names = _check_complete(path, self.config, shapes)

    def _find_parts(self) -> dict[str, Mapping[str, Part]]:
        """Maps the weight of each quantised module to its parts."""
        if self.quantization is None:
            return {}
        dtypes = {name: file.tensors[name].dtype for name, file in self._holders.items()}
        found: dict[str, Mapping[str, Part]] = {}
        for name in weight_shapes(self.config):
            module = self._stored(name).removesuffix(".weight")
            suffixes = part_suffixes(self.quantization, module, dtypes)
            if suffixes:
                found[name] = {suffix: self._part(f"{module}.{suffix}") for suffix in suffixes}
        return found

    def _part(self, name: str) -> Part:
        return self._holders[name].part(name)

    def _stored(self, name: str) -> str:
        return stored_name(name, self.config.architecture)

    def names(self) -> Sequence[str]:
        return self._names

    def parts(self, name: str) -> Mapping[str, Part]:
        name = _resolve(self.config, name)
        if self._stored(name) not in self._holders and name not in self._parts:
            raise KeyError(name)
        return self._parts.get(name, {})

    def tensor(self, name: str) -> Tensor:
        name = _resolve(self.config, name)
        if name in self._parts:
            raise UnsupportedFormat(
                f"tensor {quoted(name)} of `{self.path}` is quantised with the scheme in `quantization_config`, which "
                "this backend does not support",
                hint="use `--backend cuda`, the unquantised model or a GGUF file",
            )
        stored = self._stored(name)
        tensor = replace(self._holders[stored].tensor(stored), name=name)
        has_offset = self.config.architecture in OFFSET_NORM_ARCHITECTURES and is_norm(name)
        return _plus_one(tensor) if has_offset else tensor

    def fingerprint(self, page_sums: PageSums | None = None) -> str:
        return fingerprint_bytes([self._config_file().bytes, *(file.file.bytes for file in self._files())], page_sums)

    def identity(self) -> SourceIdentity:
        return identify([(file.file, file.header_bytes) for file in self._files()], [self._config_file()])

    def _config_file(self) -> MappedFile:
        return MappedFile(self.path / "config.json")

    def _files(self) -> list[SafetensorsFile]:
        files = {file.path.name: file for file in self._holders.values()}
        return [files[name] for name in sorted(files)]


def _plus_one(tensor: Tensor) -> Tensor:
    """Adds 1 to a norm's weight and returns it as F32; see `naming.py`."""
    values = dequantize(tensor) + np.float32(1.0)
    return Tensor(name=tensor.name, format="F32", shape=tensor.shape, data=values.view(np.uint8).reshape(-1))


def _resolve(config: ModelConfig, name: str) -> str:
    """Returns the name under which a weight is stored: the embedding's for a tied head."""
    return _EMBEDDING if name == _HEAD and config.tie_word_embeddings else name


def _check_complete(path: Path, config: ModelConfig, found: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """Compares the found shapes with those that the config requires and returns the names. Raises DamagedFile."""
    expected = weight_shapes(config)
    for name, shape in expected.items():
        stored = _resolve(config, name)
        if stored not in found:
            raise DamagedFile(path, f"tensor `{stored}` is missing", hint="the download may be incomplete")
        if found[stored] != shape:
            raise DamagedFile(
                path, f"tensor `{stored}` has shape {list(found[stored])}, expected {list(shape)} from the config"
            )
    return tuple(expected)


def _config(file: GgufFile) -> ModelConfig:
    embedding: TensorInfo | None = file.tensors.get("token_embd.weight")
    return config_from_gguf(
        file.path,
        file.metadata,
        vocab_rows=None if embedding is None else embedding.shape[0],
        has_tensor=file.tensors.__contains__,
        rope_factors=_rope_factors(file),
    )


def _rope_factors(file: GgufFile) -> tuple[float, ...] | None:
    """Reads `rope_freqs.weight`, the form of Llama 3's rope scaling in GGUF; None if there is none."""
    if "rope_freqs.weight" not in file.tensors:
        return None
    tensor = file.tensor("rope_freqs.weight")
    if tensor.format != "F32" or len(tensor.shape) != 1 or tensor.num_elements > 1 << 10:
        raise DamagedFile(
            file.path,
            f"tensor `rope_freqs.weight` is {tensor.format} {list(tensor.shape)}, expected a short F32 row",
        )
    return struct.unpack(f"<{tensor.num_elements}f", bytes(tensor.data))
