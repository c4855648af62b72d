"""Opens adapters: folders as PEFT writes them, and GGUF files as llama.cpp's `convert_lora_to_gguf.py` does.

Both have the names of the base model's files, so `weights/places.py` says which weights they change, and which rows of
a joined matrix are whose. The model itself may have another format than the adapter.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from trunkline_server.adapters.adapter import Adapter, LowRank
from trunkline_server.adapters.files import CONFIG, WEIGHTS
from trunkline_server.adapters.peft_config import PeftConfig
from trunkline_server.errors import (
    DamagedFile,
    InvalidArgument,
    ModelNotFound,
    UnsupportedArchitecture,
    UnsupportedFormat,
    quoted,
)
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.keys import Keys
from trunkline_server.models.places import Place
from trunkline_server.models.registry import ARCHITECTURES
from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.completeness import needed_shapes
from trunkline_server.weights.gguf import GgufFile, TensorInfo
from trunkline_server.weights.places import (
    gguf_place,
    interleaved_heads,
    is_expert,
    is_head,
    is_in_layer,
    safetensors_places,
)
from trunkline_server.weights.safetensors import SafetensorsFile

# PEFT leaves out the `.weight` of magnitudes.
_PEFT_FACTOR = re.compile(r"base_model\.model\.(.+)\.lora_(?:(A|B)\.weight|(magnitude)_vector(?:\.weight)?)")
_GGUF_FACTOR = re.compile(r"(.+)\.weight\.lora_([ab])")
_HINT = "supported are low-rank changes of the layers' linear weights, except experts"


class _Target(NamedTuple):
    """A tensor of the base model's file, [outputs, inputs] if it is linear.

    changed: the shapes of the weights that have rows of it. refusal: what it is if no adapter may change it.
    """

    shape: tuple[int, ...]
    changed: Mapping[str, tuple[int, ...]]
    places: Mapping[str, Place]
    refusal: str | None


class _Source(NamedTuple):
    """The tensors of an adapter, and what their names are.

    scale: from a module and its rank. base: what is known of the base model. is_dora: each module has a magnitude.
    """

    path: Path
    status: os.stat_result
    tensors: Sequence[TensorInfo]
    names: re.Pattern[str]
    scale: Callable[[str, int], float]
    base: str
    is_dora: bool = False


def open_adapter(path: Path, config: ModelConfig, max_rank: int) -> Adapter:
    """Opens an adapter for the model with this config: a folder of PEFT or a `.gguf` file. Reads only headers.

    Raises ModelNotFound, DamagedFile, UnsupportedFormat, UnsupportedArchitecture, and InvalidArgument for a rank above
    max_rank.
    """
    is_gguf = not path.is_dir()
    source = _from_gguf(path, config) if is_gguf else _from_peft(path)
    factors = [(*_module(source, info.name), info) for info in source.tensors]
    targets = _targets(config, frozenset(f"{module}.weight" for module, _, _ in factors) if is_gguf else None)
    pairs = defaultdict[tuple[str, str], dict[str, TensorInfo]](dict)
    for module, factor, info in factors:
        pairs[_tensor(module, targets), module][factor] = info
    weights, ranks = dict[str, LowRank](), [0]
    for (tensor, module), pair in pairs.items():
        target = _checked_target(source, config, tensor, targets)
        ranks.append(_checked_rank(source, pair, target.shape, max_rank))
        scale = source.scale(module, ranks[-1])
        for name in target.changed:
            if name in weights:
                raise DamagedFile(source.path, f"{quoted(tensor)} is changed twice")
            heads = interleaved_heads(name, config, is_gguf=is_gguf)
            rows, magnitude = target.places[name].rows, pair.get("magnitude")
            weights[name] = LowRank(pair["a"], pair["b"], scale, rows, heads, magnitude)
    if not weights:
        raise DamagedFile(source.path, "the adapter has no tensors")
    return Adapter(source.path, source.status, max(ranks), weights)


# Thousands of adapters of one model are opened with the same targets.
@lru_cache(maxsize=4)
def _targets(config: ModelConfig, gguf_names: frozenset[str] | None) -> Mapping[str, _Target]:
    """Returns the tensors of the base model by name. gguf_names: of the adapter's targets; None in safetensors."""
    shapes = weight_shapes(config)
    if gguf_names is None:
        places = safetensors_places(shapes, config, ())
    else:
        places = {name: gguf_place(name, config, gguf_names) for name in shapes}
    changed = defaultdict[str, dict[str, tuple[int, ...]]](dict)
    for name, place in places.items():
        changed[place.tensor][name] = shapes[name]
    needed = needed_shapes(config, shapes, places)
    return {
        tensor: _Target(needed.get(tensor, ()), of_tensor, places, _refusal(of_tensor))
        for tensor, of_tensor in changed.items()
    }


def _refusal(changed: Mapping[str, tuple[int, ...]]) -> str | None:
    if any(map(is_expert, changed)):
        return "an expert"
    if any(map(is_head, changed)):
        return "a matrix of single heads of latent attention"
    if not all(map(is_in_layer, changed)):
        return "an embedding, a head or a classifier"
    return "not linear" if any(len(shape) != 2 for shape in changed.values()) else None


def _from_peft(folder: Path) -> _Source:
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            hint = f"give a folder with `{CONFIG}` and `{WEIGHTS}`, or a `.gguf` file; pickle files are never read"
            raise ModelNotFound(f"adapter `{folder}` has no `{name}`", hint=hint)
    config, file = PeftConfig(folder / CONFIG), SafetensorsFile(folder / WEIGHTS)
    for name in {info.dtype: name for name, info in file.tensors.items()}.values():
        file.tensor(name)  # refuses other dtypes than those of floats
    infos = [
        TensorInfo(name, info.dtype, info.shape, info.offset, info.num_bytes) for name, info in file.tensors.items()
    ]
    base = quoted(config.base_model)
    return _Source(file.path, file.file.status, infos, _PEFT_FACTOR, config.scale, base, config.is_dora)


def _from_gguf(path: Path, config: ModelConfig) -> _Source:
    file = GgufFile(path)
    keys = Keys(path, file.metadata, what="metadata key")
    if keys.text("general.type", "model") != "adapter" or keys.text("adapter.type", "") != "lora":
        raise UnsupportedFormat(f"`{path}` is not a LoRA adapter", hint="convert one with `convert_lora_to_gguf.py`")
    if "adapter.alora.invocation_tokens" in keys:
        raise UnsupportedFormat(f"adapter `{path}` applies from certain tokens on (aLoRA), which is not supported")
    own, name = ARCHITECTURES[config.architecture].gguf, keys.text("general.architecture")
    if own is None or own.name != name:
        supported = f"{own.name}, as in the model" if own else "PEFT's format for this model"
        raise UnsupportedArchitecture(f"base architecture {quoted(name)} of adapter `{path}`", supported=(supported,))
    # llama.cpp takes an alpha of 0 for one that equals the rank.
    alpha = keys.number("adapter.lora.alpha")
    tensors, base = list(file.tensors.values()), f"another one of architecture {name}"
    return _Source(path, file.file.status, tensors, _GGUF_FACTOR, lambda _, rank: alpha / rank if alpha else 1.0, base)


def _module(source: _Source, name: str) -> tuple[str, str]:
    """Returns the module that a tensor of an adapter is for, and "a", "b" or "magnitude"."""
    if (match := source.names.fullmatch(name)) is None:
        what = f"tensor {quoted(name)} of `{source.path}` is neither A nor B of a weight"
        raise UnsupportedFormat(f"{what}, which is not supported", hint=_HINT)
    return match[1], match[match.lastindex or 0].lower()


def _tensor(module: str, targets: Container[str]) -> str:
    """Returns the base model's tensor. The training may have had the model without its head, or with a prefix."""
    tensor = f"{module}.weight"
    if tensor in targets:
        return tensor
    others = (f"model.{tensor}", tensor.partition(".")[2])
    return next((other for other in others if other in targets), tensor)


def _checked_target(source: _Source, config: ModelConfig, tensor: str, targets: Mapping[str, _Target]) -> _Target:
    """Returns a tensor of the model. Raises an error for one that takes no adapter, or that the model lacks."""
    target = targets.get(tensor)
    if target is not None and target.refusal is None:
        return target
    if target is not None:
        refusal = target.refusal
    elif re.search(r"experts|_exps\.", tensor):
        refusal = "an expert"
    else:
        what = f"{quoted(tensor)} is not in the model ({config.architecture}, {config.num_layers} layers)"
        raise DamagedFile(source.path, what, hint=f"the adapter's base model is {source.base}")
    what = f"adapter `{source.path}` changes {quoted(tensor)}, {refusal}, which is not supported"
    raise UnsupportedFormat(what, hint=_HINT)


def _checked_rank(source: _Source, pair: Mapping[str, TensorInfo], shape: tuple[int, ...], max_rank: int) -> int:
    """Returns the rank of a pair, with its magnitude, for a tensor of this shape, [outputs, inputs]."""
    if not pair.keys() >= {"a", "b"}:
        raise DamagedFile(source.path, f"tensor {quoted(next(iter(pair.values())).name)} has no counterpart")
    if ("magnitude" in pair) != source.is_dora:
        what = "no magnitude, but `use_dora` is true" if source.is_dora else "a magnitude, but `use_dora` is false"
        raise DamagedFile(source.path, f"the module of tensor {quoted(pair['a'].name)} has {what}")
    a = pair["a"]
    rank = a.shape[0] if a.shape else 0
    shapes = {"a": (max(rank, 1), shape[1]), "b": (shape[0], rank), "magnitude": shape[:1]}
    for factor, found in sorted(pair.items()):
        if found.shape != (expected := shapes[factor]):
            what = f"tensor {quoted(found.name)} has shape {list(found.shape)}, expected {list(expected)} for the model"
            raise DamagedFile(source.path, what, hint=f"the adapter's base model is {source.base}")
    if rank > max_rank:
        what = f"tensor {quoted(a.name)} of `{source.path}` has rank {rank}, but `--max-lora-rank` is {max_rank}"
        raise InvalidArgument(what, hint="raise `--max-lora-rank`")
    return rank
