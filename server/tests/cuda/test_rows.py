"""Embedding, norms and gated activations against torch, and each row against itself among other rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.tiers import first
from trunkline_server.backends.cuda.kernels.activation import (
    GELU,
    GELU_ERF,
    IDENTITY,
    RELU_SQUARED,
    SIGMOID,
    SILU,
    activate,
)
from trunkline_server.backends.cuda.kernels.embedding import embedding
from trunkline_server.backends.cuda.kernels.norm import add_rms_norm, head_l2_norm, head_rms_norm, layer_norm, rms_norm
from trunkline_server.backends.cuda.kernels.product import ProductEnd, Unsummed, summed
from trunkline_server.backends.cuda.weights import DenseWeight

EPS = 1e-5
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
# One rounding to the dtype, and sums in another order.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def random(*shape: int, dtype: torch.dtype, device: str, seed: int = 1, scale: float = 2.0) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.to(dtype).to(device)


def norm_oracle(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x = x.double()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS) * weight.double()


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 33, 576])
def test_embedding_gives_rows_of_the_weight(device: str, dtype: torch.dtype, width: int) -> None:
    weight = random(11, width, dtype=dtype, device=device)
    token_ids = torch.tensor([10, 0, 3, 3], dtype=torch.int32, device=device)
    found = embedding(token_ids, DenseWeight.of("w", weight))
    assert found.dtype == torch.float32
    assert torch.equal(found, weight[token_ids.long()].float())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 48, 576, 1500])
def test_rms_norm_matches_torch(device: str, dtype: torch.dtype, width: int) -> None:
    x = random(3, width, dtype=torch.float32, device=device)
    weight = random(width, dtype=dtype, device=device, seed=2)
    close(rms_norm(x, weight, EPS, dtype), norm_oracle(x, weight))
    close(rms_norm(x.to(dtype), weight, EPS, torch.float32), norm_oracle(x.to(dtype), weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [2, 48, 1500])
def test_layer_norm_matches_torch(device: str, dtype: torch.dtype, width: int) -> None:
    # The mean is large beside the deviation.
    x = random(3, width, dtype=torch.float32, device=device) + 5.0
    weight, bias = (random(width, dtype=dtype, device=device, seed=seed) for seed in (2, 3))
    for shift in (None, bias):
        expected = F.layer_norm(x.double(), (width,), weight.double(), None if shift is None else shift.double(), EPS)
        close(layer_norm(x, weight, shift, EPS, dtype), expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_fused_sum_and_norm_equal_the_two_operations(device: str, dtype: torch.dtype) -> None:
    residual = random(4, 80, dtype=torch.float32, device=device)
    delta = random(4, 96, dtype=dtype, device=device, seed=2)[:, 8:88]
    weight = random(80, dtype=dtype, device=device, seed=3)
    expected_sum = residual + delta
    expected = rms_norm(expected_sum, weight, EPS, dtype)
    total, normed = add_rms_norm(residual, delta, weight, EPS, dtype)
    assert torch.equal(total, expected_sum)
    assert torch.equal(normed, expected)


@pytest.mark.parametrize("dtype", first(DTYPES, torch.bfloat16))
def test_a_norm_adds_a_products_splits_as_the_product_does(device: str, dtype: torch.dtype) -> None:
    residual = random(4, 80, dtype=torch.float32, device=device)
    partials = random(3, 4, 80, dtype=torch.float32, device=device, seed=2)
    weight, bias, of_outputs = (random(80, dtype=torch.float32, device=device, seed=seed) for seed in (3, 4, 5))
    for end in (ProductEnd(), ProductEnd(bias, scales=(of_outputs, random(4, dtype=torch.float32, device=device)))):
        product = Unsummed(partials, end, torch.empty(4, 80, dtype=dtype, device=device))
        total, normed = add_rms_norm(residual, product, weight, EPS, dtype)
        expected_total, expected = add_rms_norm(residual, summed(product), weight, EPS, dtype)
        assert torch.equal(total, expected_total)
        assert torch.equal(normed, expected)


@pytest.mark.parametrize(("num_heads", "head_size"), [(3, 64), (1, 80), (9, 256), (40, 128)])
def test_heads_are_normalised_separately_also_in_strided_rows(device: str, num_heads: int, head_size: int) -> None:
    width = num_heads * head_size
    wide = random(2, width + 32, dtype=torch.float16, device=device)
    x, weight = wide[:, 32:], random(head_size, dtype=torch.float16, device=device, seed=2)
    expected = norm_oracle(x.reshape(2, num_heads, head_size), weight).reshape(2, width)
    found = head_rms_norm(x, weight, EPS, head_size)
    close(found, expected)
    unweighted = head_l2_norm(x, head_size * EPS, head_size) * head_size**0.5
    close(unweighted, norm_oracle(x.reshape(2, num_heads, head_size), torch.ones_like(weight)).reshape(2, width))
    assert head_rms_norm(x, weight, EPS, head_size, out=x) is x
    assert torch.equal(x, found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 65, 1100])
def test_activations_match_torch(device: str, dtype: torch.dtype, width: int) -> None:
    both = random(3, 2 * width, dtype=dtype, device=device)
    gate, up = both[:, :width], both[:, width:]
    close(activate(SILU, gate, up), F.silu(gate.double()) * up.double())
    close(activate(GELU, gate, up), F.gelu(gate.double(), approximate="tanh") * up.double())
    close(activate(GELU, gate), F.gelu(gate.double(), approximate="tanh"))
    close(activate(RELU_SQUARED, gate), F.relu(gate.double()).square())
    close(activate(GELU_ERF, gate), F.gelu(gate.double()))
    close(activate(SILU, gate), F.silu(gate.double()))
    close(activate(IDENTITY, up.float(), gate), gate.double() * up.double())
    close(activate(SIGMOID, gate, out_dtype=torch.float32), torch.sigmoid(gate.double()))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_activations_of_extremes_are_finite_and_nan_stays_nan(device: str) -> None:
    gate = torch.tensor([[-3e38, -1e4, -0.0, 0.0, 1e4, float("nan")]], device=device)
    up = torch.ones_like(gate)
    for activated in (
        activate(SILU, gate, up),
        activate(GELU, gate, up),
        activate(GELU, gate),
        activate(GELU_ERF, gate),
        activate(SILU, gate),
        activate(RELU_SQUARED, gate).sqrt(),
    ):
        found = activated[0].tolist()
        assert found[:5] == [0.0, 0.0, 0.0, 0.0, 1e4]
        assert found[5] != found[5]


@pytest.mark.parametrize("num_rows", [1, 2, 7])
def test_a_row_has_the_same_bits_among_any_others(device: str, num_rows: int) -> None:
    x = random(7, 200, dtype=torch.float32, device=device)
    delta = random(7, 200, dtype=torch.bfloat16, device=device, seed=2)
    weight = random(200, dtype=torch.bfloat16, device=device, seed=3)
    whole_sum, whole = add_rms_norm(x, delta, weight, EPS, torch.bfloat16)
    last = slice(7 - num_rows, 7)
    part_sum, part = add_rms_norm(x[last], delta[last], weight, EPS, torch.bfloat16)
    assert torch.equal(part_sum, whole_sum[last])
    assert torch.equal(part, whole[last])
    gated, part_gated = activate(SILU, delta, delta), activate(SILU, delta[last], delta[last])
    assert torch.equal(part_gated, gated[last])
