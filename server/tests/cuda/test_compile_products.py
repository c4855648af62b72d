"""Product, row and sampling kernels compile for Hopper; the interpreter accepts more than the compiler."""

from __future__ import annotations

from tests.cuda import product_variants, sampling_variants
from tests.cuda.compiled import Compiled
from tests.tiers import IS_FULL

MAX_SHARED_BYTES = 227 * 1024
MAX_SCALAR_BYTES = 128
_PRODUCTS = (
    "_parallel_kernel",
    "_persistent_kernel",
    "_gated_kernel",
    "_grouped_kernel",
    "_product_kernel",
)


def test_the_sampler_compiles_for_hopper(hopper: dict[str, dict[str, Compiled]]) -> None:
    kernels = hopper["sampling_variants"]
    assert len(kernels) == (12 if IS_FULL else len(sampling_variants.FIRST))
    for kernel in kernels.values():
        # The kernel with all filters keeps some of its scalars in memory.
        assert kernel.spilled_bytes <= MAX_SCALAR_BYTES, kernel
        assert kernel.shared_bytes <= MAX_SHARED_BYTES, kernel


def test_kernels_compile_for_hopper_and_use_its_matrix_units(hopper: dict[str, dict[str, Compiled]]) -> None:
    kernels = hopper["product_variants"]
    assert len(kernels) == (41 if IS_FULL else len(product_variants.FIRST))
    for kernel in kernels.values():
        assert kernel.spilled_bytes == 0, kernel
        assert kernel.shared_bytes <= MAX_SHARED_BYTES, kernel
        if kernel.kernel in _PRODUCTS:
            # One kind of instruction on every path, because bits would differ between two.
            assert kernel.products, kernel
            assert all(name.startswith("wgmma.mma_async.sync.aligned.m64") for name in kernel.products), kernel
        assert kernel.kernel != "_quantize_kernel" or kernel.inexact_divisions == 0, kernel
        assert kernel.copies_tensors == kernel.name.endswith("tma"), kernel
