"""A model in GGUF files: its config from their metadata, and its weights."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from trunkline_server.errors import DamagedFile
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.config_gguf import RopeFactors, config_from_gguf
from trunkline_server.models.places import Place
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.completeness import check_complete, check_layers, resolve
from trunkline_server.weights.fingerprint import PageSums, fingerprint_bytes
from trunkline_server.weights.gguf import GgufArray, GgufFile
from trunkline_server.weights.gguf_splits import open_splits
from trunkline_server.weights.identity import SourceIdentity, identify
from trunkline_server.weights.places import gguf_place, interleaved_heads
from trunkline_server.weights.quantization import Quantization
from trunkline_server.weights.quantized_parts import Part
from trunkline_server.weights.tensor import EncodedTensor, Tensor, Weight
from trunkline_server.weights.tensor_parts import part_at, transposed_format

# Matrices that may have one row. GGUF lacks their first dimension then.
ROWS = ("ffn_gate_inp_shexp.weight", "cls.output.weight", "token_types.weight")


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
        check_layers(path, self.config, len(self._holders))
        self._expected = weight_shapes(self.config)
        self._places = {name: gguf_place(name, self.config, self._holders) for name in self._expected}
        for found in self._places.values():
            if found.flattens and found.tensor in shapes:
                shapes[found.tensor] = (math.prod(shapes[found.tensor]),)
        self._shapes = shapes
        self._names = check_complete(path, self.config, self._places, shapes)
        self.quantization: Quantization | None = None

    def names(self) -> Sequence[str]:
        return self._names

    def place(self, name: str) -> Place:
        """Returns the place of a weight in the files. Raises KeyError."""
        return self._places[resolve(self.config, name)]

    def encoded(self, name: str) -> Weight:
        name = resolve(self.config, name)
        place, shape = self._places[name], self._expected[name]
        if not place.is_copied or len(shape) == 1:
            return self.tensor(name)
        stored_as = self._holders[place.tensor].tensors[place.tensor].format
        stored_as = transposed_format(stored_as) if place.transposes_rows else stored_as
        heads = interleaved_heads(name, self.config, is_gguf=True)
        return EncodedTensor(name, stored_as, shape, partial(self.tensor, name), heads)

    def stored_parts(self, name: str) -> Mapping[str, Part]:
        if resolve(self.config, name) not in self._places:
            raise KeyError(name)
        return {}

    def parts(self, name: str) -> Mapping[str, Part]:
        return self.stored_parts(name)

    def tensor(self, name: str) -> Tensor:
        name = resolve(self.config, name)
        place = self._places[name]
        tensor = replace(self._holders[place.tensor].tensor(place.tensor), shape=self._shapes[place.tensor])
        tensor = part_at(tensor, place)
        if place.is_exponential:
            tensor = self._logarithm(tensor)
        return replace(tensor, name=name, interleaved_heads=interleaved_heads(name, self.config, is_gguf=True))

    def _logarithm(self, tensor: Tensor) -> Tensor:
        """Returns the logarithm of the negated elements as F32. Raises DamagedFile."""
        import numpy as np

        from trunkline_server.weights.dequantize import dequantize

        values = -dequantize(tensor)
        if not ((values > 0) & np.isfinite(values)).all():
            raise DamagedFile(self.path, f"tensor `{tensor.name}` has elements that are not negative numbers")
        return replace(tensor, format="F32", data=np.log(values).view(np.uint8).reshape(-1), is_mapped=False)

    def fingerprint(self, page_sums: PageSums | None = None) -> str:
        return fingerprint_bytes([file.file.bytes for file in self.files], page_sums)

    def identity(self) -> SourceIdentity:
        return identify([(file.file, file.header_bytes) for file in self.files])


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
