"""Properties of attention's kernels on Hopper that its compiler can show."""

from __future__ import annotations

import pytest
from tests.cuda.compiled import Compiled
from tests.tiers import first
from trunkline_server.backends.cuda.kernels.card import SHARED_KIB

# A multiprocessor's shared memory, of which each program reserves 1 KiB.
SHARED_BYTES = 228 << 10
KEPT_BYTES = 1 << 10
REGISTERS = 64 << 10
# Bytes that a thread may spill in the widest kernel: fp8's conversions, and what int4 adds to scores.
SPILLED_BYTES = {"whole fp8": 64, "whole int4": 320}


@pytest.fixture(scope="module")
def compiled(hopper: dict[str, dict[str, Compiled]]) -> dict[str, Compiled]:
    return hopper["attention_variants"]


def test_registers_are_not_spilled(compiled: dict[str, Compiled]) -> None:
    spilled = {name: kernel.spilled_bytes for name, kernel in compiled.items() if kernel.spilled_bytes}
    assert all(size <= SPILLED_BYTES.get(name, 0) for name, size in spilled.items()), spilled


def test_stored_elements_are_divided_exactly(compiled: dict[str, Compiled]) -> None:
    for name, kernel in compiled.items():
        assert not name.startswith("rope and write") or kernel.inexact_divisions == 0, kernel


def test_products_are_waited_for_together(compiled: dict[str, Compiled]) -> None:
    assert not [name for name, kernel in compiled.items() if kernel.waits_for_each]


@pytest.mark.parametrize("format", first(["bf16", "fp8", "int4"], "bf16"))
def test_split_and_whole_kernels_use_the_same_instructions(format: str, compiled: dict[str, Compiled]) -> None:
    """Otherwise a decode would have other bits than a prefill."""
    products = compiled[f"split {format}"].products
    assert products == compiled[f"whole {format}"].products
    first_key = ["m64n16k16"] if format == "int4" else []
    assert [name.split(".")[4] for name in products] == ["m64n128k16", *first_key, "m64n64k16"]


@pytest.mark.parametrize("format", first(["bf16", "fp8", "int8", "int4"], "bf16"))
def test_two_programs_of_splits_fit_a_multiprocessor(format: str, compiled: dict[str, Compiled]) -> None:
    kernel = compiled[f"split {format}"]
    assert 2 * (kernel.shared_bytes + KEPT_BYTES) <= SHARED_BYTES
    assert 2 * 128 * kernel.registers <= REGISTERS


def test_both_kinds_of_latent_attention_are_computed_alike_and_fit_every_card(compiled: dict[str, Compiled]) -> None:
    split, whole = compiled["latent split"], compiled["latent whole"]
    assert split.warps == whole.warps
    assert split.products == whole.products
    assert max(split.shared_bytes, whole.shared_bytes) <= min(SHARED_KIB.values()) << 10
