"""Checks that the files of a model have every weight of its config, in its shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from trunkline_server.errors import DamagedFile
from trunkline_server.models.config import ModelConfig
from trunkline_server.models.places import Place
from trunkline_server.models.shapes import weight_shapes

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def resolve(config: ModelConfig, name: str) -> str:
    """Returns the name under which a weight is stored: the embedding's for a tied head."""
    return EMBEDDING if name == HEAD and config.tie_word_embeddings else name


def stored_shapes(config: ModelConfig, names: Iterable[str]) -> tuple[Shapes, Shapes]:
    """Returns the shapes of the weights with these names, each once: those of matrices, and the others."""
    expected = weight_shapes(config)
    stored = {name: expected[name] for name in (resolve(config, name) for name in names) if name in expected}
    matrices = {name for name, shape in stored.items() if len(shape) == 2}
    others = {name: shape for name, shape in stored.items() if name not in matrices}
    return {name: stored[name] for name in stored if name in matrices}, others


def check_layers(path: Path, config: ModelConfig, num_tensors: int) -> None:
    """Raises DamagedFile if there are fewer tensors than layers, before millions of names are made for these."""
    if config.num_layers > num_tensors:
        raise DamagedFile(path, f"the config has {config.num_layers} layers, but the files have {num_tensors} tensors")


def check_complete(
    path: Path, config: ModelConfig, places: Mapping[str, Place], found: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Compares the shapes of the file's tensors with those that the config requires, and returns the names of weights.

    Raises DamagedFile.
    """
    expected = weight_shapes(config)
    needed = needed_shapes(config, expected, places)
    for tensor, shape in needed.items():
        if tensor not in found:
            raise DamagedFile(path, f"tensor `{tensor}` is missing", hint="the download may be incomplete")
        if found[tensor] != shape:
            raise DamagedFile(
                path, f"tensor `{tensor}` has shape {list(found[tensor])}, expected {list(shape)} from the config"
            )
    return tuple(expected)


def needed_shapes(
    config: ModelConfig, expected: Mapping[str, tuple[int, ...]], places: Mapping[str, Place]
) -> dict[str, tuple[int, ...]]:
    """Returns the shapes that the tensors of a file must have."""
    rows: dict[str, int] = {}
    stacks: dict[str, int] = {}
    transposed: set[str] = set()
    others: dict[str, tuple[int, ...]] = {}
    for name in expected:
        place, shape = places[resolve(config, name)], expected[resolve(config, name)]
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
