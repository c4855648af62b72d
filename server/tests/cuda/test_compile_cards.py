"""For cards other than Hopper, kernels compile, fit the shared memory, and use one kind of product."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cuda.compiled import OTHER_CARDS, Compiled, compiled_once

# `make test` compiles one kernel of each kind for Hopper.
pytestmark = pytest.mark.full

_PRODUCTS = {"8.0": "mma.sync", "8.9": "mma.sync", "10.0": "tcgen05.mma", "12.0": "mma.sync"}
# Bytes that a thread may spill to its stack: e4m3 conversion in software and heads of 256 elements exceed registers.
_SPILLED_BYTES = 224


@pytest.fixture(scope="module")
def compiled(shared_folder: Path) -> dict[str, Compiled]:
    return compiled_once(shared_folder, ["card_variants"], list(OTHER_CARDS))


@pytest.mark.parametrize("name", OTHER_CARDS)
def test_kernels_fit_a_card_and_use_its_tensor_cores(name: str, compiled: dict[str, Compiled]) -> None:
    card, kernels = OTHER_CARDS[name], [kernel for kernel in compiled.values() if kernel.name.startswith(f"{name} ")]
    assert len(kernels) >= 3
    for kernel in kernels:
        assert kernel.shared_bytes <= card.shared_bytes, kernel
        assert kernel.spilled_bytes <= _SPILLED_BYTES, kernel
        # One kind of instruction on every path, because bits would differ between two.
        assert len(kernel.products) == 1, kernel
        assert kernel.products[0].startswith(_PRODUCTS[name]), kernel
        assert kernel.copies_tensors == kernel.name.endswith("tma"), kernel


def test_both_kinds_of_attention_distribute_rows_alike(compiled: dict[str, Compiled]) -> None:
    """Otherwise a row's weights would be added in two orders."""
    split, whole = compiled["8.0 split bf16"], compiled["8.0 whole bf16"]
    assert split.warps == whole.warps
    assert len(split.warps) == 1
    assert split.products == whole.products


def test_fp8_products_are_added_in_f32(compiled: dict[str, Compiled]) -> None:
    """Ada's tensor cores add with fewer bits, so no product continues from the previous sum."""
    kernel = compiled["8.9 fp8e4nv [28672, 4096] x 64 pointers"]
    assert kernel.f32_sums >= 32, "a sum for each element of a thread"
