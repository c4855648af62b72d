"""Grouped weights: GGUF's formats repacked, and products equal to those of the dequantised weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from tests.tiers import full
from tests.weights.gguf_files import quantize
from tests.weights.random_groups import random_groups
from trunkline_server.backends.cuda.kernels.embedding import embedding
from trunkline_server.backends.cuda.kernels.grouped import dequantized_rows
from trunkline_server.backends.cuda.kernels.linear import linear
from trunkline_server.backends.cuda.kernels.linear_grouped import grouped_linear
from trunkline_server.backends.cuda.kernels.numerics import e4m3_by_bits, from_e4m3
from trunkline_server.backends.cuda.kernels.product import ProductEnd, summed
from trunkline_server.backends.cuda.quantized.gguf import GROUPED_FORMATS, gguf_weight
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight, grouped
from trunkline_server.weights.dequantize import UNPACKED_FORMATS, dequantize
from trunkline_server.weights.tensor import FORMATS, Tensor

# Scales that are products of two numbers are stored as f16.
RELATIVE_ERROR = dict.fromkeys(("IQ4_XS", "Q3_K", "Q4_K", "Q5_K", "Q6_K", *UNPACKED_FORMATS), 2.0**-10)


def random_weight(format_name: str, num_rows: int, num_inputs: int, device: str) -> tuple[GroupedWeight, torch.Tensor]:
    """Returns a random weight made of two parts, and what `weights/dequantize.py` reads."""
    values = np.random.default_rng(num_rows).standard_normal((num_rows, num_inputs)).astype(np.float32)
    if format_name in UNPACKED_FORMATS:
        num_groups = num_rows * num_inputs // FORMATS[format_name].group_elements
        raw = random_groups(format_name, num_groups, seed=3).reshape(num_rows, -1)
    else:
        raw = quantize(values, format_name)
    stored = Tensor(name="w", format=format_name, shape=values.shape, data=raw.reshape(-1))
    rows = torch.from_numpy(raw.copy()).to(device)
    weight = gguf_weight(format_name, [rows[:3], rows[3:]], torch.float16)
    return weight, torch.from_numpy(dequantize(stored)).to(device)


@pytest.mark.parametrize("format_name", sorted(GROUPED_FORMATS))
def test_every_gguf_format_matches_the_reference(device: str, format_name: str) -> None:
    width = 512 if FORMATS[format_name].group_elements == 256 else 160
    weight, expected = random_weight(format_name, 20, width, device)
    found = dequantized_rows(weight, None, torch.empty(20, width, device=device))
    if format_name in RELATIVE_ERROR:
        error = RELATIVE_ERROR[format_name] * expected.abs().max().item()
        torch.testing.assert_close(found, expected, rtol=0, atol=error)
    else:
        assert torch.equal(found, expected)
    token_ids = torch.tensor([19, 0, 4], dtype=torch.int32, device=device)
    assert torch.equal(embedding(token_ids, weight), found[token_ids.long()])
    x = torch.randn(3, width, generator=torch.Generator().manual_seed(1)).to(torch.float16).to(device)
    product = linear(x, weight, out_dtype=torch.float32)
    exact = x.double() @ found.to(torch.float16).double().T
    largest = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(product.double(), exact, rtol=1e-5, atol=1e-4 * largest)


def exact_weight(bits: int, group_size: int, kind: str, num_inputs: int, device: str) -> GroupedWeight:
    """Returns a weight of numbers whose sums are exact in f32 in any order."""
    generator = torch.Generator().manual_seed(bits + group_size)
    num_outputs, num_groups = 40, -(-num_inputs // group_size)

    def integers(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    def of_groups(low: int, high: int) -> torch.Tensor:
        return integers(low, high, num_outputs, num_groups).to(device, torch.float16)

    if bits == 4:
        quants = integers(0, 16, num_outputs, num_inputs).to(torch.uint8)
    else:
        quants = integers(-8, 8, num_outputs, num_inputs).to(torch.int8)
    return grouped(
        quants.to(device), of_groups(1, 4), group_size, bits=bits, dtype=torch.float16,
        zero_point=8 if bits == 4 else 0,
        zeros=of_groups(0, 16) if kind == "zeros" else None, minima=of_groups(-8, 8) if kind == "minima" else None,
        order=torch.randperm(num_inputs, generator=generator).to(torch.int32).to(device) if kind == "order" else None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("bits", "group_size", "kind"),
    [
        full(4, 32, "zero_point"),
        full(4, 128, "zeros"),
        full(4, 64, "minima"),
        (4, 512, "order"),
        (8, 16, "minima"),
        full(8, 128, "zeros"),
    ],
)
def test_no_bit_depends_on_rows_or_path(device: str, bits: int, group_size: int, kind: str) -> None:
    num_inputs = 520  # three splits; the last block is partial
    weight = exact_weight(bits, group_size, kind, num_inputs, device)
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-4, 5, (36, num_inputs), generator=generator).to(torch.float16).to(device)
    bias = torch.arange(40, dtype=torch.float32, device=device)

    def product(rows: slice, max_register_rows: int = 128) -> torch.Tensor:
        out = torch.full((x[rows].shape[0], 40), torch.nan, device=device)
        return summed(grouped_linear(x[rows], weight, ProductEnd(bias), out, max_register_rows=max_register_rows))

    whole = product(slice(0, 36))
    assert weight.plan.num_splits > 1
    assert torch.equal(whole, product(slice(0, 36), max_register_rows=0))
    assert torch.equal(whole[5:6], product(slice(5, 6)))
    assert torch.equal(whole[8:28], product(slice(8, 28)))
    values = dequantized_rows(weight, None, torch.empty(40, num_inputs, device=device))
    columns = x if weight.order is None else x[:, weight.order.long()]
    assert torch.equal(whole.double(), columns.double() @ values.double().T + bias)


@triton.jit
def _convert_kernel(codes, out, BY_BITS: tl.constexpr):
    at = tl.arange(0, 256)
    numbers = tl.load(codes + at)
    tl.store(out + at, e4m3_by_bits(numbers) if BY_BITS else from_e4m3(numbers, tl.float32))


@pytest.mark.parametrize("by_bits", [True, False])
def test_every_code_of_e4m3_converts_as_in_torch(device: str, by_bits: bool) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    out = torch.empty(256, dtype=torch.float32, device=device)
    _convert_kernel[(1,)](codes, out, BY_BITS=by_bits)
    expected = codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(7.0).view(torch.int32), expected.nan_to_num(7.0).view(torch.int32))
