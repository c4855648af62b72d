"""The memory that adapters take while they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from trunkline_server.models.shapes import weight_shapes
from trunkline_server.weights.places import takes_adapter

if TYPE_CHECKING:
    from trunkline_server.adapters.adapter import Adapter  # it needs numpy, which serving may not
    from trunkline_server.models.config import ModelConfig

# The rank of most adapters.
PLANNED_RANK = 16


def planned_bytes(config: ModelConfig, num_slots: int, max_rank: int, matrix_bytes: Callable[[int, int], int]) -> int:
    """Returns the bytes that are planned for all loaded adapters: one of `PLANNED_RANK` in each slot, or of the largest
    rank if that is lower, and at least one adapter of that rank. All may be DoRAs.

    matrix_bytes: of a matrix with these rows and columns, in the format that takes most.
    """
    if not num_slots:
        return 0
    shapes = [shape for name, shape in weight_shapes(config).items() if takes_adapter(name, shape)]

    def num_bytes(rank: int) -> int:
        pairs = sum(matrix_bytes(rank, columns) + matrix_bytes(rows, rank) for rows, columns in shapes)
        return pairs + sum(_gain_bytes(rows) for rows, _ in shapes)

    return max(num_slots * num_bytes(min(max_rank, PLANNED_RANK)), num_bytes(max_rank))


def bytes_of(adapter: Adapter, matrix_bytes: Callable[[str, int, int], int]) -> int:
    """Returns the bytes that an adapter takes while it is loaded.

    matrix_bytes: of a matrix in a file's format, with these rows and columns.
    """
    total = 0
    for weight in adapter.weights.values():
        rank, num_columns = weight.a.shape
        num_rows = sum(end - begin for begin, end in weight.rows) or weight.b.shape[0]
        total += matrix_bytes(weight.a.format, rank, num_columns) + matrix_bytes(weight.b.format, num_rows, rank)
        total += 0 if weight.magnitude is None else _gain_bytes(num_rows)
    return total


def _gain_bytes(num_rows: int) -> int:
    """Returns the bytes of a DoRA's gain, in f32."""
    return 4 * num_rows
