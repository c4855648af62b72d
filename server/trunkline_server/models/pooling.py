"""The way in which a model makes the vector of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["first", "last", "mean"]


@dataclass(frozen=True)
class Pooling:
    """The output that is the vector of a prompt.

    kind: that of the first or last position, or the mean of all; whole: each position sees those behind it, so that a
    prompt cannot be cut into chunks. labels: the classes of a classifier, whose logits are the vector; empty: the
    vector is the hidden state after the final norm.
    """

    kind: Kind
    whole: bool = False
    labels: tuple[str, ...] = ()


def kind_from_gguf(pooling_type: object) -> Kind | None:
    """Returns the pooling of the metadata `pooling_type` of a GGUF file; None if it has none."""
    kinds: dict[object, Kind] = {1: "mean", 2: "first", 3: "last"}
    return kinds.get(pooling_type)
