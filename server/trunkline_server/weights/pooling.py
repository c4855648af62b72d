"""Reads from the files of a model how it makes vectors.

sentence-transformers describes a model by `modules.json`: a transformer, then a pooling module, whose folder has a
`config.json` of its own, perhaps dense modules with weights, and often a module that normalises. transformers names the
head in `architectures`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from trunkline_server.errors import DamagedFile, InvalidArgument, UnsupportedFormat, quoted
from trunkline_server.models.config import MAX_FEATURES, ModelConfig
from trunkline_server.models.keys import Keys
from trunkline_server.models.pooling import MAX_LABELS, Dense, Kind, Pooling
from trunkline_server.models.registry import ARCHITECTURES
from trunkline_server.weights.safetensors import SafetensorsFile, read_json_object

MODULES = "modules.json"
# The backends that make vectors.
BACKENDS = ("cpu", "cuda", "reference")
# The names of sentence-transformers.
_MODES: dict[str, Kind] = {"cls": "first", "mean": "mean", "lasttoken": "last"}
_ACTIVATIONS = {"torch.nn.modules.linear.Identity": False, "torch.nn.modules.activation.Tanh": True}
_MAX_BYTES = 1 << 20
_MAX_MODULES = 16
_CLASSIFIER = "ForSequenceClassification"


def stated_pooling(config: ModelConfig, path: Path, values: Mapping[str, object], has_head: bool) -> ModelConfig:
    """Adds what a folder says about vectors to a config.

    path: of `config.json`, whose contents are `values`. has_head: the files hold an output head of their own.
    Raises DamagedFile or UnsupportedFormat.
    """
    whole = config.pooling is not None and config.pooling.whole
    if _is_classifier(values):
        kind: Kind = _classifier_kind(config, path, values) if whole else "last"
        if not whole and (rows := _answer_tokens(path.parent, values)):
            return _answering(path, config, Pooling("last", labels=("LABEL_0",), answer_rows=rows))
        return replace(config, pooling=Pooling(kind, whole, _labels(path, values)), has_output_head=False)
    stated, is_bare = _stated_pooling(path.parent, whole), _has_bare_architecture(values)
    if whole:
        return config if stated is None else replace(config, pooling=stated)
    if stated is None and not is_bare:
        return config
    if stated is not None and stated.answer_rows:
        return _answering(path, config, stated)
    has_head = not is_bare and (config.tie_word_embeddings or has_head)
    return replace(config, pooling=stated or Pooling("last"), has_output_head=has_head)


def _answering(path: Path, config: ModelConfig, pooling: Pooling) -> ModelConfig:
    """Makes a model answer whether two texts fit. Raises DamagedFile or UnsupportedFormat."""
    if any(not 0 <= row < config.vocab_size for row in pooling.answer_rows):
        raise DamagedFile(path.parent / MODULES, f"an answer's token id is not one of {config.vocab_size}")
    if config.logit_soft_cap is not None:
        raise UnsupportedFormat(f"`{path}` caps the logits, which makes them no scores")
    return replace(config, pooling=pooling, has_output_head=False)


def open_modules(folder: Path, config: ModelConfig) -> dict[str, SafetensorsFile]:
    """Opens the weights of `Pooling.dense` and returns, for each tensor, `FOLDER/NAME`, the file that holds it.

    Raises DamagedFile or UnsupportedFormat.
    """
    holders: dict[str, SafetensorsFile] = {}
    for dense in config.pooling.dense if config.pooling is not None else ():
        path = folder / dense.folder / "model.safetensors"
        if not path.is_file():
            hint = "convert the module to safetensors if it is there; pickle files are never read"
            raise DamagedFile(path, f"it is missing, though `{MODULES}` names its folder", hint=hint)
        file = SafetensorsFile(path, prefix=f"{dense.folder}/")
        holders |= dict.fromkeys(file.tensors, file)
    return holders


def with_pooling(config: ModelConfig, asked: str, backend: str) -> ModelConfig:
    """Applies the setting `--pooling`. Raises InvalidArgument if model or backend leave no such choice."""
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
    kind = cast(Kind, asked)
    pooling = Pooling(kind) if config.pooling is None else replace(config.pooling, kind=kind)
    if _loses_tanh(pooling):
        raise InvalidArgument(f"`--pooling` is {asked}, but a module with tanh follows", hint="leave it out")
    return replace(config, pooling=pooling)


def _is_classifier(values: Mapping[str, Any]) -> bool:
    """Returns True if a `config.json` names a head that classifies sequences."""
    return any(str(name).endswith(_CLASSIFIER) for name in _architectures(values))


def _classifier_kind(config: ModelConfig, path: Path, values: Mapping[str, Any]) -> Kind:
    """Returns the pooling of an encoder's classifier."""
    encoder = ARCHITECTURES[config.architecture].encoder
    key = None if encoder is None else encoder.classifier_pooling_key
    mode = "cls" if key is None else str(values.get(key, "cls"))
    if mode not in ("cls", "mean"):
        raise UnsupportedFormat(f"`{key}` {quoted(mode)} of `{path}` is not supported")
    return _MODES[mode]


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
        if not isinstance(count, int) or not 1 <= count <= MAX_LABELS:
            raise DamagedFile(path, f"`num_labels` is {quoted(str(count))}, expected 1 to {MAX_LABELS}")
        return tuple(f"LABEL_{index}" for index in range(count))
    if not isinstance(names, dict) or not 1 <= len(names) <= MAX_LABELS:
        raise DamagedFile(path, f"`id2label` is not an object of 1 to {MAX_LABELS} names")
    keys = [str(index) for index in range(len(names))]
    if set(names) != set(keys):
        raise DamagedFile(path, f"`id2label` does not name the classes 0 to {len(names) - 1}")
    return tuple(str(names[key]) for key in keys)


def _stated_pooling(folder: Path, whole: bool) -> Pooling | None:
    """Returns the pooling that `modules.json` of a folder states, with what follows; None without such a file.

    Raises DamagedFile, and UnsupportedFormat for modules that change the vector in another way.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    modules = _read(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise DamagedFile(path, "it is not a list of modules")
    if len(modules) > _MAX_MODULES:
        raise DamagedFile(path, f"it has {len(modules)} modules, the limit is {_MAX_MODULES}")
    pooling: Pooling | None = None
    is_normalised = False
    for module in modules:
        name, place = str(module.get("type", "")).rpartition(".")[2], str(module.get("path", ""))
        if (name != "Transformer" and place in ("..", ".")) or "/" in place:
            raise DamagedFile(
                path, f"the module {quoted(name)} is in {quoted(place)}, which is not a plain folder name"
            )
        if name == "Pooling" and pooling is None:
            pooling = Pooling(_pooling(folder / place / "config.json"), whole)
        elif name == "Dense" and pooling is not None and not is_normalised:
            pooling = replace(pooling, dense=(*pooling.dense, _dense(folder, place)))
        elif name == "LogitScore" and pooling is None and not whole:
            pooling = Pooling("last", labels=("LABEL_0",), answer_rows=_answer_rows(folder / place / "config.json"))
        elif name == "Normalize":
            is_normalised = True
        elif name != "Transformer":
            where = " in this place" if name in ("Dense", "LogitScore", "Pooling") else ""
            raise UnsupportedFormat(f"`{path}` has the module {quoted(name)}{where}, which is not supported")
    if pooling is not None and _loses_tanh(pooling):
        raise UnsupportedFormat(f"`{path}` has a `Dense` module with tanh behind the mean of a decoder's outputs")
    return pooling


def _loses_tanh(pooling: Pooling) -> bool:
    """Returns True if tanh would be applied to each position instead of their mean; see `models/vectors.py`."""
    return pooling.kind == "mean" and not pooling.whole and any(dense.has_tanh for dense in pooling.dense)


def _answer_rows(path: Path) -> tuple[int, ...]:
    """Reads the token ids of "yes" and, if it counts, "no" from the config of a `LogitScore` module."""
    keys = Keys(path, _read_object(path))
    if (name := keys.text("module_input_name", "causal_logits")) != "causal_logits":
        raise UnsupportedFormat(f"`module_input_name` {quoted(name)} of `{path}` is not supported")
    names = ("true_token_id", *(["false_token_id"] if keys.get("false_token_id") is not None else []))
    return tuple(map(keys.integer, names))


def _answer_tokens(folder: Path, values: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the token ids of "yes" and "no" if `config.json` names both as vLLM does; empty otherwise."""
    names = values.get("classifier_from_token")
    if names is None:
        return ()
    path = folder / "tokenizer.json"
    if not isinstance(names, list) or len(names) != 2 or not path.is_file():
        raise UnsupportedFormat(
            f"`classifier_from_token` of `{folder / 'config.json'}` is not a list of two tokens in `tokenizer.json`, "
            "which is not supported"
        )
    model = read_json_object(path).get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict):
        raise DamagedFile(path, "`model.vocab` is missing or not an object")
    no, yes = (vocabulary.get(str(name)) for name in names)
    if type(yes) is not int or type(no) is not int:
        raise DamagedFile(path, f"{' or '.join(quoted(str(name)) for name in names)} is not one of its tokens")
    return (yes, no)


def _dense(folder: Path, place: str) -> Dense:
    path = folder / place / "config.json"
    keys = Keys(path, _read_object(path))
    activation = keys.text("activation_function", "torch.nn.modules.activation.Tanh")
    if activation not in _ACTIVATIONS:
        raise UnsupportedFormat(f"`activation_function` {quoted(activation)} of `{path}` is not supported")
    name = keys.text("module_input_name", "sentence_embedding")
    if (name, keys.text("module_output_name", name)) != ("sentence_embedding", "sentence_embedding"):
        raise UnsupportedFormat(f"`{path}` reads or writes another value than `sentence_embedding`")
    if keys.boolean("use_residual", False):
        raise UnsupportedFormat(f"`use_residual` of `{path}` is not supported")
    num_outputs = keys.integer("out_features")
    if not 1 <= num_outputs <= MAX_FEATURES:
        raise keys.wrong("out_features", f"from 1 to {MAX_FEATURES}")
    return Dense(place, num_outputs, keys.boolean("bias", True), _ACTIVATIONS[activation])


def _pooling(path: Path) -> Kind:
    values = _read_object(path)
    # Older versions have a key for each mode, such as `pooling_mode_mean_tokens`.
    old = [name.removeprefix("pooling_mode_") for name, is_on in values.items() if is_on is True]
    modes = [re.sub("_tokens?$", "", name) for name in old]
    if "pooling_mode" in values:
        modes = [str(values["pooling_mode"])]
    modes = [mode for mode in modes if mode != "include_prompt"]
    if len(modes) != 1 or modes[0] not in _MODES:
        raise UnsupportedFormat(
            f"`{path}` pools by {', '.join(map(quoted, modes)) or 'nothing'}, which is not supported"
        )
    return _MODES[modes[0]]


def _read_object(path: Path) -> dict[str, Any]:
    """Reads the config of a module. Raises DamagedFile."""
    if not path.is_file():
        raise DamagedFile(path, "it is missing, though `modules.json` names it", hint="the download may be incomplete")
    values = _read(path)
    if not isinstance(values, dict):
        raise DamagedFile(path, "it is not an object")
    return values


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise DamagedFile(path, f"it has more than {_MAX_BYTES} bytes")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedFile(path, f"it is not JSON: {error}") from None
