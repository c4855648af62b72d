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
    vector is the hidden state after the final norm. dense: what follows it. answer_rows: rows of the output head, or of
    `cls.output` in GGUF files. The only label's logit is that of the first, minus that of the second if there is one: a
    prompt asks whether two texts fit, and the logits are those of the answers "yes" and "no".
    """

    kind: Kind
    whole: bool = False
    labels: tuple[str, ...] = ()
    dense: tuple[Dense, ...] = ()
    answer_rows: tuple[int, ...] = ()

    @property
    def is_summed(self) -> bool:
        """True if the vector is the mean of what all chunks of a prompt make, instead of one row of a step."""
        return self.kind == "mean" and not self.whole


MAX_LABELS = 1 << 10
# The metadata `pooling_type` of GGUF files whose vector is the score of a pair.
RANK = 4


def kind_from_gguf(pooling_type: object) -> Kind | None:
    """Returns the pooling of the metadata `pooling_type` of a GGUF file; None if it has none."""
    kinds: dict[object, Kind] = {1: "mean", 2: "first", 3: "last"}
    return kinds.get(pooling_type)
