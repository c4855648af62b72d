"""Properties of compiled kernels that the interpreter cannot show, for Hopper and, in `make test-all`, other cards."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import pytest
from tests.cuda.compiled import ATTENTION, HOPPER, OTHER_CARDS, Compiled, compiled_once
from tests.tiers import first
from trunkline_server.backends.cuda import kernels
from trunkline_server.backends.cuda.kernels.card import KEPT_BYTES, SHARED_KIB, Card

SHARED_BYTES = 228 << 10
REGISTERS = 64 << 10
# Bytes that a thread may spill: fp8's conversions in the widest kernel, what int4 adds to scores, scalars of the
# sampler's kernel with all filters, and heads of 256 elements.
SPILLED_BYTES = {
    ("attention fp8", "whole_kernel"): 64, ("attention int8", "whole_kernel"): 64,
    ("attention int4", "whole_kernel"): 320, ("all filters", "_choose_kernel"): 128,
    ("sampler", "_choose_kernel"): 128, ("wide heads", "split_kernel"): 64, ("wide heads", "whole_kernel"): 640,
}  # fmt: skip
# On other cards, e4m3 conversion in software exceeds registers, and so does attention of long chunks, most of all with
# heads of 256 elements.
OTHERS_SPILLED_BYTES = {"whole_kernel": 1000}
MOST_SPILLED_BYTES = 224
PRODUCTS = {"8.0": "mma.sync", "8.9": "mma.sync", "9.0": "wgmma", "10.0": "tcgen05.mma", "12.0": "mma.sync"}
COPYING = ("_parallel_kernel", "_persistent_kernel", "_gated_kernel")


@pytest.fixture(scope="module")
def hopper(shared_folder: Path) -> list[Compiled]:
    return compiled_once(shared_folder, HOPPER)


def kernel(compiled: list[Compiled], launch: str, name: str) -> Compiled:
    (found,) = [one for one in compiled if (one.launch, one.kernel) == (launch, name)]
    return found


def check(card: Card, compiled: list[Compiled]) -> None:
    for one in compiled:
        assert one.shared_bytes <= card.shared_bytes, one
        # One kind of instruction on every path, because bits would differ between two.
        kinds = {name.partition(".")[0] for name in one.products}
        assert len(kinds) <= 1, one
        is_latent = one.kernel.startswith("latent")
        assert is_latent or all(name.startswith(PRODUCTS[card.name]) for name in one.products), one
        copies = card.copies_tensors and one.kernel in COPYING and one.launch != "1 row by pointers"
        assert one.copies_tensors == copies, one


def test_kernels_fit_hopper_and_use_its_tensor_cores(hopper: list[Compiled]) -> None:
    check(HOPPER, hopper)
    spilled = [one for one in hopper if one.spilled_bytes > SPILLED_BYTES.get((one.launch, one.kernel), 0)]
    assert not spilled


@pytest.mark.full
def test_every_kernel_is_compiled(hopper: list[Compiled]) -> None:
    modules = [
        importlib.import_module(f"{kernels.__name__}.{one.name}") for one in pkgutil.iter_modules(kernels.__path__)
    ]
    named = {name for module in modules for name in vars(module) if name.endswith("_kernel")}
    assert {one.kernel for one in hopper} == named


@pytest.mark.full
@pytest.mark.parametrize("card", OTHER_CARDS, ids=lambda card: card.name)
def test_kernels_fit_other_cards_and_use_their_tensor_cores(card: Card, shared_folder: Path) -> None:
    compiled = compiled_once(shared_folder, card)
    check(card, compiled)
    assert not [one for one in compiled if one.spilled_bytes > OTHERS_SPILLED_BYTES.get(one.kernel, MOST_SPILLED_BYTES)]
    assert len([one for one in compiled if one.products]) >= 3
    if card.name == "8.0":
        # Otherwise a row's weights would be added in two orders.
        split, whole = (kernel(compiled, "attention bf16", f"{name}_kernel") for name in ("split", "whole"))
        decode = kernel(compiled, "decodes bf16", "decode_kernel")
        assert split.warps == whole.warps == decode.warps and len(split.warps) == 1
        assert split.products == whole.products == decode.products
    if card.name == "8.9":
        # Ada's tensor cores add with fewer bits, so no product continues from the previous sum.
        assert kernel(compiled, "e4m3", "_parallel_kernel").f32_sums >= 32, "a sum for each element of a thread"


def test_stored_elements_are_divided_exactly(hopper: list[Compiled]) -> None:
    kernels = [one for one in hopper if one.kernel in ("_rope_and_write_kernel", "_quantize_kernel")]
    assert kernels and not [one for one in kernels if one.inexact_divisions]


def test_attention_waits_for_products_together(hopper: list[Compiled]) -> None:
    kernels = [one for one in hopper if one.kernel in ATTENTION]
    assert kernels and not [one for one in kernels if one.waits_for_each]


@pytest.mark.parametrize("format", first(["bf16", "fp8"], "bf16"))
def test_decodes_are_computed_as_splits_are(format: str, hopper: list[Compiled]) -> None:
    """Two programs share a multiprocessor, as those of splits do."""
    decode = kernel(hopper, f"decodes {format}", "decode_kernel")
    split = kernel(hopper, f"attention {format}", "split_kernel")
    assert (decode.products, decode.warps) == (split.products, split.warps)
    assert 2 * (decode.shared_bytes + KEPT_BYTES) <= SHARED_BYTES and 2 * 128 * decode.registers <= REGISTERS


@pytest.mark.parametrize("format", first(["bf16", "fp8", "int8", "int4"], "bf16"))
def test_split_and_whole_attention_use_the_same_instructions(format: str, hopper: list[Compiled]) -> None:
    """Otherwise a decode would have other bits than a prefill. Two programs of splits share a multiprocessor."""
    split, whole = (kernel(hopper, f"attention {format}", f"{name}_kernel") for name in ("split", "whole"))
    assert split.products == whole.products
    first_key = ["m64n16k16"] if format == "int4" else []
    assert [name.split(".")[4] for name in split.products] == ["m64n128k16", *first_key, "m64n64k16"]
    assert 2 * (split.shared_bytes + KEPT_BYTES) <= SHARED_BYTES
    assert 2 * 128 * split.registers <= REGISTERS


def test_both_kinds_of_latent_attention_are_computed_alike_and_fit_every_card(hopper: list[Compiled]) -> None:
    split, whole = (kernel(hopper, "latents", f"latent_{name}_kernel") for name in ("split", "whole"))
    assert split.warps == whole.warps and split.products == whole.products
    assert max(split.shared_bytes, whole.shared_bytes) <= min(SHARED_KIB.values()) << 10


def test_what_overlaps_waits_before_anything_else(hopper: list[Compiled]) -> None:
    overlapping = [one for one in hopper if one.overlaps]
    assert len(overlapping) >= 10
    assert not [one for one in overlapping if not one.waits_first]
    assert not all(one.waits_first for one in hopper)
