"""Weights as they are stored in a file."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Format:
    """A storage format: groups of `group_elements` along the innermost dimension take `group_bytes` each."""

    group_elements: int
    group_bytes: int


# Layouts of the quantised groups: ggml-common.h of ggml (`block_q8_0` and so on).
FORMATS: dict[str, Format] = {
    "F32": Format(1, 4),
    "F16": Format(1, 2),
    "BF16": Format(1, 2),
    "Q8_0": Format(32, 34),
    "Q4_0": Format(32, 18),
    "Q4_1": Format(32, 20),
    "Q5_0": Format(32, 22),
    "Q5_1": Format(32, 24),
    "Q4_K": Format(256, 144),
    "Q5_K": Format(256, 176),
    "Q6_K": Format(256, 210),
    "Q3_K": Format(256, 110),
    "IQ4_NL": Format(32, 18),
    "IQ4_XS": Format(256, 136),
    "MXFP4": Format(32, 17),
    "Q2_K": Format(256, 84),
    "TQ1_0": Format(256, 54),
    "TQ2_0": Format(256, 66),
    "IQ2_XXS": Format(256, 66),
    "IQ2_XS": Format(256, 74),
    "IQ2_S": Format(256, 82),
    "IQ3_XXS": Format(256, 98),
    "IQ3_S": Format(256, 110),
    "IQ1_S": Format(256, 50),
    "IQ1_M": Format(256, 56),
}

# The formats that `affine.py` makes of other checkpoints: an f32 scale and minimum, then 32 nibbles as in Q4_1, or 32
# signed bytes. An element is `scale * number + minimum`.
AFFINE_FORMATS: dict[str, Format] = {"AFFINE4": Format(32, 24), "AFFINE8": Format(32, 40)}
ALL_FORMATS = FORMATS | AFFINE_FORMATS

# Most dimensions that the readers accept. ggml's own limit is 4; the weights here have 1 or 2.
MAX_DIMENSIONS = 8


@dataclass(frozen=True, slots=True)
class Tensor:
    """One weight as its file stores it.

    name: as in the model's safetensors, such as `model.layers.0.self_attn.q_proj.weight`.
    format: a key of `ALL_FORMATS`.
    shape: in elements, outermost first, so a linear weight is [N, K] and its rows are contiguous.
    data: its bytes, contiguous and read-only; usually a view of the mapped file. May begin at any address, so code that
        needs an aligned one makes a copy.
    interleaved_heads: rows per head and how many of them are rotated, if the file stores the rotated rows of each head
        in another order; see `places.py`.
    is_mapped: `data` is pages of a file mapped read-only, which may be dropped from memory and read again.
    """

    name: str
    format: str
    shape: tuple[int, ...]
    data: memoryview | NDArray[np.uint8]
    interleaved_heads: tuple[int, int] | None = None
    is_mapped: bool = False

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.data.nbytes

    def part(self, place: int) -> Tensor:
        """Returns the part of a stacked tensor at `place` of its first dimension."""
        num_bytes = self.num_bytes // self.shape[0]
        data = self.data[place * num_bytes : (place + 1) * num_bytes]
        return replace(self, shape=self.shape[1:], data=data)

    def rows(self, begin: int, end: int) -> Tensor:
        """Returns rows `begin` to `end`."""
        num_bytes = self.num_bytes // self.shape[0]
        return replace(self, shape=(end - begin, *self.shape[1:]), data=self.data[begin * num_bytes : end * num_bytes])

    @property
    def row_bytes(self) -> int:
        """Bytes of one row along the innermost dimension."""
        return stored_bytes(self.format, self.shape[-1:])


@dataclass(frozen=True, slots=True)
class EncodedTensor:
    """A weight that must be decoded. The fields are those of the `Tensor` that `read` returns."""

    name: str
    format: str
    shape: tuple[int, ...]
    read: Callable[[], Tensor]
    interleaved_heads: tuple[int, int] | None = None

    @property
    def num_bytes(self) -> int:
        return stored_bytes(self.format, self.shape)


Weight = Tensor | EncodedTensor


def stored_bytes(format_name: str, shape: tuple[int, ...]) -> int:
    """Returns the size in bytes of a tensor of `shape`. Raises ValueError if a row is not a whole number of groups."""
    stored_as = ALL_FORMATS[format_name]
    if shape and shape[-1] % stored_as.group_elements != 0:
        raise ValueError(f"rows of {shape[-1]} elements are not a multiple of {stored_as.group_elements}")
    return math.prod(shape) // stored_as.group_elements * stored_as.group_bytes
