"""Stacks of experts in MXFP4, which GPT-OSS has in place of its matrices.

The stack of matrices `NAME`, [E, K, N], is stored as `NAME_blocks`, u8 [E, N, K / 32, 16], and `NAME_scales`, u8
[E, N, K / 32]: two elements in a byte, the first in the lower half, and the exponent of each group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from trunkline_server.errors import DamagedFile, quoted
from trunkline_server.models.places import Place
from trunkline_server.weights.quantized_parts import MXFP4_GROUP, Part

_BLOCK_BYTES = MXFP4_GROUP // 2


class Mxfp4Stack:
    """The stack of one projection of all experts of a layer. shape: that of the matrices that it encodes, [E, K, N].

    Raises DamagedFile if a tensor is missing or has another shape than the other one.
    """

    def __init__(self, path: Path, name: str, find: Callable[[str], Part | None]) -> None:
        self._name = name
        blocks, scales = (self._found(path, find, suffix) for suffix in ("blocks", "scales"))
        if len(blocks.shape) != 4 or blocks.shape[-1] != _BLOCK_BYTES or 0 in blocks.shape:
            raise DamagedFile(
                path,
                f"tensor {quoted(blocks.name)} has shape {list(blocks.shape)}, expected [experts, rows, groups, 16]",
            )
        if scales.shape != blocks.shape[:-1]:
            raise DamagedFile(
                path,
                f"tensor {quoted(scales.name)} has shape {list(scales.shape)}, expected {list(blocks.shape[:-1])} to "
                f"match {quoted(blocks.name)}",
            )
        self._blocks, self._scales = blocks, scales
        num_experts, num_outputs, groups, _ = blocks.shape
        self.shape = num_experts, groups * MXFP4_GROUP, num_outputs

    def _found(self, path: Path, find: Callable[[str], Part | None], suffix: str) -> Part:
        part = find(f"{self._name}_{suffix}")
        if part is None:
            raise DamagedFile(
                path, f"tensor {quoted(f'{self._name}_{suffix}')} is missing", hint="the download may be incomplete"
            )
        if part.dtype != "U8":
            raise DamagedFile(path, f"tensor {quoted(part.name)} is {part.dtype}, expected U8")
        return part

    def parts(self, place: Place) -> Mapping[str, Part]:
        """Returns the parts of the matrix at `place`, which must lie inside the shape."""
        return {"blocks": _rows(self._blocks, place), "scales": _rows(self._scales, place)}


def _rows(stack: Part, place: Place) -> Part:
    assert place.index is not None, "experts are stacked"
    import numpy as np

    begin, end = place.rows[0] if place.rows else (0, stack.shape[1])
    values = np.frombuffer(stack.data, dtype=np.uint8).reshape(stack.shape)[place.index, begin : end : place.step]
    return Part(name=stack.name, dtype=stack.dtype, shape=values.shape, data=values)
