"""Cards other than Hopper: kernels compile for each of them, within its shared memory, with one kind of product."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cuda.compiled import OTHER_CARDS, Compiled, compiled_once

# One kernel of each kind is compiled for Hopper in `make test`.
pytestmark = pytest.mark.full

_PRODUCTS = {"8.0": "mma.sync", "8.9": "mma.sync", "10.0": "tcgen05.mma", "12.0": "mma.sync"}
# Of a thread, in its stack: what is converted from e4m3 by hand, and heads of 256 elements, do not fit registers.
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
        # One kind of instruction on every path: bits would differ between two.
        assert len(kernel.products) == 1, kernel
        assert kernel.products[0].startswith(_PRODUCTS[name]), kernel
        assert kernel.copies_tensors == kernel.name.endswith("tma"), kernel


def test_both_ways_of_attention_share_a_row_out_alike(compiled: dict[str, Compiled]) -> None:
    """Or else its weights would be added in two orders."""
    split, whole = compiled["8.0 split bf16"], compiled["8.0 whole bf16"]
    assert split.warps == whole.warps
    assert len(split.warps) == 1
    assert split.products == whole.products


def test_fp8_products_are_added_in_f32(compiled: dict[str, Compiled]) -> None:
    """What Ada's tensor cores add keeps fewer bits: no product goes on from the sum before."""
    kernel = compiled["8.9 fp8e4nv [28672, 4096] x 64 pointers"]
    assert kernel.f32_sums >= 32, "a sum for each element of a thread"
