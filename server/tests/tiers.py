"""Parameters of tests by tier: `make test` runs a part of a matrix, `make test-all` all of it."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

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


def draw_seed() -> int:
    """Returns a seed for drawing cases: constant in `make test`, new each time in `make test-all`."""
    return random.randrange(1 << 30) if IS_FULL else 1
