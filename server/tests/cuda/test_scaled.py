"""Products of 8-bit weights and activations against f64 products of the same numbers, and bit for bit for any rows."""

from __future__ import annotations

from types import MappingProxyType

import pytest
import torch
from tests.tiers import first
from trunkline_server.backends.cuda.kernels.card import card_of
from trunkline_server.backends.cuda.kernels.linear import linear
from trunkline_server.backends.cuda.kernels.quantize_rows import quantize_rows
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight

E4M3 = torch.float8_e4m3fn
LARGEST = {E4M3: 448.0, torch.int8: 127.0}


@pytest.fixture(autouse=True)
def card_that_multiplies_fp8(device: str) -> None:
    if not card_of(torch.device(device)).multiplies_fp8:
        pytest.skip("this card multiplies no FP8: such weights are grouped ones there")


def rows_of(num_rows: int, width: int, device: str, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_rows)
    spread = torch.logspace(-6, 3, width)
    return (torch.randn(num_rows, width, generator=generator) * spread).to(dtype).to(device)


@pytest.mark.parametrize("dtype", [E4M3, torch.int8])
@pytest.mark.parametrize("limit", [None, 20.0])
def test_rounded_rows_match_torch(device: str, dtype: torch.dtype, limit: float | None) -> None:
    x = rows_of(4, 300, device)
    x[2] = 0.0
    values, scales = quantize_rows(x, dtype, limit=limit)
    peak = x.float().abs().amax(1).clamp(max=limit or torch.inf)
    expected_scales = torch.where(peak > 0, peak, 1.0) / LARGEST[dtype]
    assert torch.equal(scales, expected_scales)
    scaled = (x.float() / expected_scales[:, None]).clamp(-LARGEST[dtype], LARGEST[dtype])
    expected = scaled.to(E4M3) if dtype == E4M3 else scaled.round().to(torch.int8)
    assert torch.equal(values.float(), expected.float())
    assert values.stride(0) % 16 == 0


def test_a_given_scale_applies_to_all_rows_and_large_numbers_saturate(device: str) -> None:
    x = torch.tensor([[1e6, -1e6, 3.0, 0.01]], device=device)
    values, scales = quantize_rows(x, E4M3, torch.tensor([0.5], device=device))
    assert values.float().tolist() == [[448.0, -448.0, 6.0, 0.01953125]]
    assert scales.tolist() == [0.5]


def test_e4m3_rounding_matches_torch_at_and_between_all_numbers(device: str) -> None:
    numbers = torch.arange(256, dtype=torch.uint8).view(E4M3).float()
    numbers = numbers[numbers.isfinite()].sort().values
    between = (numbers[1:] + numbers[:-1]) / 2
    nudged = torch.cat([between.nextafter(torch.tensor(500.0)), between.nextafter(torch.tensor(-500.0))])
    x = torch.cat([numbers, between, nudged])[None].to(device)
    values, _ = quantize_rows(x, E4M3, torch.ones(1, device=device))
    assert torch.equal(values.view(torch.uint8), x.to(E4M3).view(torch.uint8))


def scaled_weight(dtype: torch.dtype, device: str, *, is_static: bool, is_exact: bool) -> ScaledWeight:
    num_outputs, num_inputs = 40, 528
    generator = torch.Generator().manual_seed(3)
    if is_exact:
        values = torch.randint(-4, 5, (num_outputs, num_inputs), generator=generator).float()
    else:
        values = torch.randn(num_outputs, num_inputs, generator=generator).clamp(-3, 3) * 30
    values = values.to(E4M3) if dtype == E4M3 else values.round().to(torch.int8)
    return ScaledWeight(
        num_outputs=num_outputs, num_inputs=num_inputs, dtype=torch.float16, values=values.to(device),
        scales=(2.0 ** torch.randint(-6, 0, (num_outputs,), generator=generator)).to(device),
        slices=MappingProxyType({"w": (0, num_outputs)}), bias=torch.ones(num_outputs, device=device),
        input_scale=torch.tensor([2.0], device=device) if is_static else None,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [E4M3, torch.int8])
@pytest.mark.parametrize("is_static", [False, True])
def test_a_product_matches_the_rounded_numbers(device: str, dtype: torch.dtype, is_static: bool) -> None:
    weight = scaled_weight(dtype, device, is_static=is_static, is_exact=False)
    x = rows_of(5, weight.num_inputs, device, torch.float16).clamp(-250, 250)
    values, scales = quantize_rows(x, dtype, weight.input_scale)
    left, right = values.double() * scales.double()[:, None], weight.values.double() * weight.scales.double()[:, None]
    expected = left @ right.T + 1.0
    found = linear(x, weight, has_bias=True, out_dtype=torch.float32)
    # On the device, sums of 128 products of e4m3 have about 14 bits.
    tolerance = 2e-3 if dtype == E4M3 and device == "cuda" else 1e-5
    error = tolerance * expected.abs().max().item()
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=error)
    # Also close to the unrounded product, so the right numbers were multiplied.
    unrounded = x.double() @ right.T + 1.0
    assert ((found - unrounded).norm() / unrounded.norm()).item() < 0.05


@pytest.mark.parametrize("dtype", first([E4M3, torch.int8], E4M3))
def test_no_bit_depends_on_the_number_of_rows(device: str, dtype: torch.dtype) -> None:
    is_exact = device == "cpu"
    weight = scaled_weight(dtype, device, is_static=is_exact, is_exact=is_exact)
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-8, 9, (80, weight.num_inputs), generator=generator).to(torch.float16).to(device)
    whole = linear(x, weight, out_dtype=torch.float32)
    assert weight.plan.num_splits > 1
    for rows in (slice(0, 1), slice(3, 20), slice(10, 74), slice(9, 76)):
        assert torch.equal(linear(x[rows], weight, out_dtype=torch.float32), whole[rows])
