"""Parameters of tests by tier: `make test` runs a part of a matrix, `make test-all` all of it."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import product
from typing import Any, TypeVar

import pytest

Item = TypeVar("Item", bound=Any)

IS_FULL = os.environ.get("TRUNKLINE_TEST_ALL") == "1"


def matrix(*dimensions: Sequence[Any]) -> list[Any]:
    """Returns the product of the dimensions as parameters, `full` except for a diagonal in which each value occurs."""
    lengths = [len(values) for values in dimensions]
    diagonal = {tuple(row % length for length in lengths) for row in range(max(lengths))}
    return [
        pytest.param(*(values[index] for values, index in zip(dimensions, indexes, strict=True)))
        if indexes in diagonal
        else full(*(values[index] for values, index in zip(dimensions, indexes, strict=True)))
        for indexes in product(*(range(length) for length in lengths))
    ]


def full(*values: Any) -> Any:
    """Returns a parameter that only `make test-all` runs."""
    return pytest.param(*values, marks=pytest.mark.full)


def first(values: Sequence[Any], *kept: Any) -> list[Any]:
    """Returns parameters of which `make test` runs only the kept ones."""
    assert set(kept) <= set(values), "a value that is kept is none of them"
    return [value if value in kept else full(value) for value in values]


def first_of_each_kind(items: Sequence[Item]) -> list[Item]:
    """Returns the first case of each test and format or dtype, and none in f32 where there is another.

    items: of pytest. A GPU compiles kernels for each case, and those in f32, which no server runs, for minutes.
    """
    kinds: dict[tuple[str, str], Item] = {}
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        dtypes = [value for name, value in parameters.items() if "format" in name or "dtype" in name]
        kinds.setdefault((item.nodeid.partition("[")[0], " ".join(map(str, dtypes))), item)
    others = {test for test, kind in kinds if not _is_f32(kind)}
    return [item for (test, kind), item in kinds.items() if test not in others or not _is_f32(kind)]


def _is_f32(kind: str) -> bool:
    return any(name in ("f32", "torch.float32") for name in kind.split())


def draw_seed() -> int:
    """Returns a seed for drawing cases: constant in `make test`, new each time in `make test-all`."""
    return random.randrange(1 << 30) if IS_FULL else 1
