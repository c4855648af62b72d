"""A model in a folder with `config.json` and safetensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from trunkline_server.errors import ModelNotFound, UnsupportedArchitecture, UnsupportedFormat, quoted
from trunkline_server.models.config_json import config_from_json
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.completeness import HEAD, check_complete, check_layers, resolve
from trunkline_server.weights.fingerprint import PageSums, fingerprint_bytes
from trunkline_server.weights.identity import SourceIdentity, identify
from trunkline_server.weights.mapping import MappedFile
from trunkline_server.weights.mxfp4 import Mxfp4Stack
from trunkline_server.weights.places import has_offset, interleaved_heads, rows_in_order, safetensors_places
from trunkline_server.weights.pooling import open_modules, stated_pooling
from trunkline_server.weights.quantization import Mxfp4, parse_quantization
from trunkline_server.weights.quantized_parts import Part, check_finite, part_suffixes, quantized_shape
from trunkline_server.weights.safetensors import SafetensorsFile, open_shards, read_json_object
from trunkline_server.weights.tensor import EncodedTensor, Tensor, Weight
from trunkline_server.weights.tensor_parts import floats, part_at, transposed, transposed_format


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
        self.config = stated_pooling(self.config, config_path, values, HEAD in self._holders)
        self._holders |= open_modules(path, self.config)
        shapes = {name: file.tensors[name].shape for name, file in self._holders.items()}
        check_layers(path, self.config, len(self._holders))
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
        self._names = check_complete(path, self.config, self._places, shapes)
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
        name, parts = resolve(self.config, name), self.stored_parts(name)
        place, shape = self._places[name], self._expected[name]
        if not parts and (not place.is_copied or len(shape) == 1):
            return self.tensor(name)
        heads = None
        if parts:
            from trunkline_server.weights.affine import decoded_format

            assert self.quantization is not None, "parts are only found under a scheme"
            num_inputs = shape[0] if place.transposes_rows else shape[1]
            stored_as = decoded_format(self.quantization, parts, num_inputs=num_inputs)
        else:
            stored_as = self._holders[place.tensor].tensors[place.tensor].dtype
            heads = interleaved_heads(name, self.config, is_gguf=False)
        stored_as = transposed_format(stored_as) if place.transposes_rows else stored_as
        return EncodedTensor(name, stored_as, shape, partial(self.tensor, name), heads)

    def stored_parts(self, name: str) -> Mapping[str, Part]:
        name = resolve(self.config, name)
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
        import numpy as np

        from trunkline_server.weights.selected_parts import selected

        place = self._places[name]
        num_rows = self._shapes[place.tensor][0]
        rows = np.concatenate([np.arange(begin, end) for begin, end in place.rows or [(0, num_rows)]])
        if (heads := interleaved_heads(name, self.config, is_gguf=False)) is not None:
            rows = rows_in_order(rows, *heads)
        if np.array_equal(rows, np.arange(num_rows)):
            return parts
        return selected(self.quantization, name, parts, rows, num_rows)

    def tensor(self, name: str) -> Tensor:
        name = resolve(self.config, name)
        if name in self._parts:
            assert self.quantization is not None, "parts are only found under a scheme"
            from trunkline_server.weights.affine import decoded

            tensor = decoded(self.quantization, name, self.parts(name))
            return transposed(tensor) if self._places[name].transposes_rows else tensor
        place = self._places[name]
        tensor = part_at(self._holders[place.tensor].tensor(place.tensor), place)
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
    import numpy as np

    from trunkline_server.weights.dequantize import dequantize

    return floats(tensor.name, dequantize(tensor) + np.float32(1.0))
