"""Tables and sizes as the commands on models print them."""

from __future__ import annotations

from collections.abc import Sequence

_MIB, _GIB = 2**20, 2**30


def size(num_bytes: int) -> str:
    """Returns bytes in GiB, or in MiB rounded up."""
    return f"{num_bytes / _GIB:.1f} GiB" if num_bytes >= _GIB else f"{-(-num_bytes // _MIB)} MiB"


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns a line for each row, with the columns aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return [line.rstrip() for line in lines]
