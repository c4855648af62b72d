"""Reads from the files of a model how it makes vectors.

sentence-transformers describes a model by `modules.json`: a transformer, then a pooling module, whose folder has a
`config.json` of its own, and often a module that normalises. transformers names the head in `architectures`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from trunkline_server.errors import DamagedFile, InvalidArgument, UnsupportedFormat, quoted
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.pooling import Kind, Pooling

MODULES = "modules.json"
# The backends that make vectors.
BACKENDS = ("cpu", "reference")
# The names of sentence-transformers.
_MODES: dict[str, Kind] = {"cls": "first", "mean": "mean", "lasttoken": "last"}
_MAX_BYTES = 1 << 20
_MAX_LABELS = 1 << 10
_CLASSIFIER = "ForSequenceClassification"


def stated_pooling(config: ModelConfig, path: Path, values: Mapping[str, object], has_head: bool) -> ModelConfig:
    """Adds what a folder says about vectors to a config.

    path: of `config.json`, whose contents are `values`. has_head: the files hold an output head of their own.
    Raises DamagedFile or UnsupportedFormat.
    """
    whole = config.pooling is not None and config.pooling.whole
    if _is_classifier(values):
        kind: Kind = "first" if whole else "last"
        return replace(config, pooling=Pooling(kind, whole, _labels(path, values)), has_output_head=False)
    stated, is_bare = _stated_kind(path.parent), _has_bare_architecture(values)
    if whole:
        return config if stated is None else replace(config, pooling=Pooling(stated, whole))
    if stated is None and not is_bare:
        return config
    has_head = not is_bare and (config.tie_word_embeddings or has_head)
    return replace(config, pooling=Pooling(stated or "last"), has_output_head=has_head)


def with_pooling(config: ModelConfig, asked: str, backend: str) -> ModelConfig:
    """Applies `--pooling`, one of `cli.POOLING`. Raises InvalidArgument if model or backend leave no such choice."""
    config = _asked(config, asked)
    if backend in BACKENDS or config.pooling is None:
        return config
    if config.has_output_head:
        refuse_pooling(asked, backend)
        return replace(config, pooling=None)
    raise _no_vectors(backend)


def refuse_pooling(asked: str, backend: str) -> None:
    """Raises InvalidArgument if `--pooling` asks for embeddings, which a backend does not make."""
    if asked not in ("auto", "none"):
        raise _no_vectors(backend)


def _no_vectors(backend: str) -> InvalidArgument:
    return InvalidArgument(
        f"the {backend} backend makes no embeddings", hint=f"use the {' or '.join(BACKENDS)} backend"
    )


def _asked(config: ModelConfig, asked: str) -> ModelConfig:
    if asked == "auto":
        return config
    if config.pooling is not None and config.pooling.labels:
        raise InvalidArgument(f"`--pooling` is {asked}, but the model classifies", hint="leave it out")
    if asked == "none":
        if not config.has_output_head:
            raise InvalidArgument("`--pooling` is none, but the model makes nothing but vectors", hint="leave it out")
        return replace(config, pooling=None)
    whole = config.pooling is not None and config.pooling.whole
    return replace(config, pooling=Pooling(cast(Kind, asked), whole=whole))


def _is_classifier(values: Mapping[str, Any]) -> bool:
    """Returns True if a `config.json` names a head that classifies sequences."""
    return any(str(name).endswith(_CLASSIFIER) for name in _architectures(values))


def _has_bare_architecture(values: Mapping[str, Any]) -> bool:
    """Returns True if a `config.json` names an architecture without any head, such as `Qwen3Model`."""
    names = _architectures(values)
    return bool(names) and all(str(name).endswith("Model") for name in names)


def _architectures(values: Mapping[str, Any]) -> list[Any]:
    names = values.get("architectures")
    return names if isinstance(names, list) else []


def _labels(path: Path, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the classes of `config.json` by index; transformers has two where the config names none.

    Raises DamagedFile.
    """
    names = values.get("id2label")
    if names is None:
        count = values.get("num_labels", 2)
        if not isinstance(count, int) or not 1 <= count <= _MAX_LABELS:
            raise DamagedFile(path, f"`num_labels` is {quoted(str(count))}, expected 1 to {_MAX_LABELS}")
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(names, dict) or not 1 <= len(names) <= _MAX_LABELS:
        raise DamagedFile(path, f"`id2label` is not an object of 1 to {_MAX_LABELS} names")
    keys = [str(index) for index in range(len(names))]
    if set(names) != set(keys):
        raise DamagedFile(path, f"`id2label` does not name the classes 0 to {len(names) - 1}")
    return tuple(str(names[key]) for key in keys)


def _stated_kind(folder: Path) -> Kind | None:
    """Returns the pooling that `modules.json` of a folder states; None without such a file.

    Raises DamagedFile, and UnsupportedFormat for modules that change the vector in another way.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    modules = _read(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise DamagedFile(path, "it is not a list of modules")
    kind: Kind | None = None
    for module in modules:
        name = str(module.get("type", "")).rpartition(".")[2]
        if name == "Pooling":
            kind = _pooling(folder / str(module.get("path", "")) / "config.json")
        elif name not in ("Transformer", "Normalize"):
            raise UnsupportedFormat(f"`{path}` has the module {quoted(name)}, which is not supported")
    return kind


def _pooling(path: Path) -> Kind:
    if not path.is_file():
        raise DamagedFile(path, "it is missing, though `modules.json` names it", hint="the download may be incomplete")
    values = _read(path)
    if not isinstance(values, dict):
        raise DamagedFile(path, "it is not an object")
    # Older versions have a key for each mode, such as `pooling_mode_mean_tokens`.
    old = [name.removeprefix("pooling_mode_") for name, is_on in values.items() if is_on is True]
    modes = [values["pooling_mode"]] if "pooling_mode" in values else [re.sub("_tokens?$", "", name) for name in old]
    modes = [mode for mode in modes if mode != "include_prompt"]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedFormat(
            f"`{path}` pools by {', '.join(map(quoted, modes)) or 'nothing'}, which is not supported"
        )
    return _MODES[modes[0]]


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise DamagedFile(path, f"it has more than {_MAX_BYTES} bytes")
    try:
        return json.loads(data)
    except ValueError as error:
        raise DamagedFile(path, f"it is not JSON: {error}") from None
