"""The way in which a model makes the vector of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["first", "last", "mean"]


@dataclass(frozen=True)
class Dense:
    """A product behind the pooling, with the weights `vector.INDEX`.

    folder: of its files. has_tanh: the result goes through tanh.
    """

    folder: str
    num_outputs: int
    has_bias: bool
    has_tanh: bool


@dataclass(frozen=True)
class Pooling:
    """The output that is the vector of a prompt.

    kind: that of the first or last position, or the mean of all; whole: each position sees those behind it, so that a
    prompt cannot be cut into chunks. labels: the classes of a classifier, whose logits are the vector; empty: the
    vector is the hidden state after the final norm. dense: what follows it.
    """

    kind: Kind
    whole: bool = False
    labels: tuple[str, ...] = ()
    dense: tuple[Dense, ...] = ()


def kind_from_gguf(pooling_type: object) -> Kind | None:
    """Returns the pooling of the metadata `pooling_type` of a GGUF file; None if it has none."""
    kinds: dict[object, Kind] = {1: "mean", 2: "first", 3: "last"}
    return kinds.get(pooling_type)
