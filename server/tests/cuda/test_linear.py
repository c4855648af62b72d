"""Products with dense weights against torch, and bit for bit for any number of rows, tiles and path."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch
import torch.nn.functional as F
from tests.cuda.kv_oracle import random
from tests.tiers import first, full, matrix
from trunkline_server.backends.cuda.kernels.activation import SILU, activate
from trunkline_server.backends.cuda.kernels.card import card_of
from trunkline_server.backends.cuda.kernels.head_linear import head_linear
from trunkline_server.backends.cuda.kernels.linear import library_linear, linear
from trunkline_server.backends.cuda.kernels.linear_dense import dense_linear
from trunkline_server.backends.cuda.kernels.linear_gated import gated_linear, is_gated
from trunkline_server.backends.cuda.kernels.product import ProductEnd, summed
from trunkline_server.backends.cuda.kernels.product_plan import ProductPlan, Tiles
from trunkline_server.backends.cuda.weights import DenseWeight

SMALL = Tiles(64, 16, 128, num_warps=4, num_stages=3, is_parallel=True)
WIDE = Tiles(128, 64, 64, num_warps=4, num_stages=3, is_parallel=True)
PERSISTENT = Tiles(128, 128, 64, num_warps=8, num_stages=3, is_parallel=False)
# Splits of one, two and three whole units and a rest, whatever a weight of this shape would get.
PLANS = [ProductPlan(72, 200, 1, 256), ProductPlan(72, 328, 3, 128), ProductPlan(136, 400, 2, 256)]


def numbers(*shape: int, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
    """Returns random numbers on a GPU; in the interpreter, small integers, whose sums are exact in f32 in any order.

    The interpreter's products are numpy's, whose order depends on the shape.
    """
    generator = torch.Generator().manual_seed(seed)
    if device == "cuda":
        return torch.randn(*shape, generator=generator).to(dtype).to(device)
    return torch.randint(-8, 9, shape, generator=generator).to(dtype)


@pytest.mark.parametrize(("dtype", "plan"), matrix([torch.float16, torch.bfloat16, torch.float32], PLANS))
def test_a_product_matches_torch(device: str, dtype: torch.dtype, plan: ProductPlan) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, plan.num_inputs, generator=generator).to(dtype).to(device)
    values = torch.randn(plan.num_outputs, plan.num_inputs, generator=generator).to(dtype).to(device)
    bias = torch.randn(plan.num_outputs, generator=generator).to(device)
    expected = x.double() @ values.double().T + bias.double()
    out = torch.empty(5, plan.num_outputs, device=device)
    found = summed(dense_linear(x, values, plan, ProductEnd(bias), out))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("plan", "is_tma"), [full(PLANS[0], True), (PLANS[1], False), full(PLANS[2], True)])
def test_no_bit_depends_on_rows_tiles_or_path(device: str, plan: ProductPlan, is_tma: bool) -> None:
    can_copy = device == "cpu" or card_of(torch.device(device)).copies_tensors
    x = numbers(150, plan.num_inputs, dtype=torch.float16, device=device, seed=1)
    values = numbers(plan.num_outputs, plan.num_inputs, dtype=torch.float16, device=device, seed=2)
    bias = numbers(plan.num_outputs, dtype=torch.float32, device=device, seed=3)

    def product(rows: slice, tiles: Tiles) -> torch.Tensor:
        part = x[rows]
        out = torch.full((part.shape[0], plan.num_outputs), torch.nan, device=device)
        return summed(dense_linear(part, values, plan, ProductEnd(bias), out, tiles=tiles, is_tma=is_tma and can_copy))

    whole = product(slice(0, 150), PERSISTENT)
    if device == "cpu":
        assert torch.equal(whole, x.float() @ values.float().T + bias)
    assert torch.equal(whole, product(slice(0, 150), WIDE))
    assert torch.equal(whole[147:148], product(slice(147, 148), SMALL))
    assert torch.equal(whole[3:20], product(slice(3, 20), SMALL))
    assert torch.equal(whole[64:130], product(slice(64, 130), PERSISTENT))
    # Copies by the device and by threads have the same order.
    out = torch.empty(17, plan.num_outputs, device=device)
    summed(dense_linear(x[3:20], values, plan, ProductEnd(bias), out, tiles=SMALL, is_tma=not is_tma and can_copy))
    assert torch.equal(whole[3:20], out)


def test_rows_may_be_parts_of_wider_ones(device: str) -> None:
    wide = numbers(3, 300, dtype=torch.float16, device=device, seed=1)
    values = numbers(40, 150, dtype=torch.float16, device=device, seed=2)
    out = torch.full((3, 64), 7.0, dtype=torch.float16, device=device)
    weight = DenseWeight.of("w", values)
    linear(wide[:, 150:], weight, out=out[:, 8:48])
    expected = (wide[:, 150:].double() @ values.double().T).to(torch.float16)
    torch.testing.assert_close(out[:, 8:48], expected, rtol=1e-3, atol=1e-2)
    assert (out[:, :8] == 7.0).all()
    assert (out[:, 48:] == 7.0).all()


@pytest.mark.parametrize("shape", [(100, 64), (33, 520)])
def test_the_chosen_tiles_agree_for_every_number_of_rows(device: str, shape: tuple[int, int]) -> None:
    num_outputs, num_inputs = shape
    values = numbers(num_outputs, num_inputs, dtype=torch.float16, device=device, seed=2)
    weight = DenseWeight.of("w", values, bias=torch.ones(num_outputs, device=device))
    x = numbers(130, num_inputs, dtype=torch.float16, device=device, seed=1)
    whole = linear(x, weight, has_bias=True, out_dtype=torch.float32)
    for num_rows in (1, 17, 40, 64, 65):
        assert torch.equal(linear(x[:num_rows], weight, has_bias=True, out_dtype=torch.float32), whole[:num_rows])
    assert linear(x[:2], weight).dtype == torch.float16
    assert linear(x[:0], weight).shape == (0, num_outputs)


@pytest.mark.parametrize("dtype", first([torch.bfloat16, torch.float16, torch.float32], torch.bfloat16))
def test_a_gated_product_has_the_bits_of_product_and_activation(device: str, dtype: torch.dtype) -> None:
    values = numbers(2 * 72, 200, dtype=dtype, device=device, seed=2) / 64
    stack = MappingProxyType({"gate": (0, 72), "up": (72, 144)})
    shape = {"num_outputs": 144, "num_inputs": 200, "dtype": dtype}
    for bias in (None, numbers(144, dtype=torch.float32, device=device, seed=3)):
        weight = DenseWeight(values=values, slices=stack, bias=bias, **shape)
        assert is_gated(weight)
        x = numbers(130, 200, dtype=dtype, device=device, seed=1)
        both = linear(x, weight, has_bias=bias is not None)
        expected = activate(SILU, both[:, :72], both[:, 72:])
        for num_rows in (1, 17, 40, 130):
            found = gated_linear(x[:num_rows], weight, SILU, has_bias=bias is not None)
            assert torch.equal(found, expected[:num_rows])
    assert not is_gated(DenseWeight.of("w", values))


def test_capped_logits_match_torch(device: str) -> None:
    x = numbers(3, 96, dtype=torch.float16, device=device, seed=1)
    values = numbers(100, 96, dtype=torch.float16, device=device, seed=2) / 16
    expected = 30.0 * torch.tanh(x.double() @ values.double().T / 30.0)
    for product, tolerance in ((linear, 1e-4), (library_linear, 2e-2)):
        found = product(x, DenseWeight.of("lm_head.weight", values), soft_cap=30.0, out_dtype=torch.float32)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


def test_library_products_agree_up_to_rounding(device: str) -> None:
    x = numbers(4, 96, dtype=torch.float16, device=device, seed=1)
    values = numbers(48, 96, dtype=torch.float16, device=device, seed=2)
    weight = DenseWeight.of("w", values, bias=torch.ones(48, device=device))
    torch.testing.assert_close(library_linear(x, weight, has_bias=True), linear(x, weight, has_bias=True))


@pytest.mark.parametrize("sizes", [(3, 48, 80), (2, 16, 20)])
def test_each_head_has_a_matrix_of_its_own(sizes: tuple[int, int, int], device: str) -> None:
    num_heads, num_inputs, num_outputs = sizes
    weight = random(num_heads, num_outputs, num_inputs).to(device)
    # A part of wider rows.
    x = random(9, num_heads * num_inputs + 5, seed=1).to(device)[:, 5:]
    found = head_linear(x, weight)
    heads = [F.linear(part, matrix) for part, matrix in zip(x.chunk(num_heads, 1), weight, strict=True)]
    torch.testing.assert_close(found, torch.cat(heads, 1), rtol=1e-4, atol=1e-4)
    for row in (0, 8):
        assert torch.equal(head_linear(x[row : row + 1], weight), found[row : row + 1])
