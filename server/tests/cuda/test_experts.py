"""Experts against the reference backend's computation, and each row against itself among other rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from trunkline_server.backends.cuda.kernels.activation import SILU, activate
from trunkline_server.backends.cuda.kernels.experts import combine, expert_product, route
from trunkline_server.backends.cuda.weights import DenseWeight
from trunkline_server.backends.reference.ops import _activated
from trunkline_server.models.ops import ClampedSwiglu

NUM_EXPERTS, WIDTH, INNER = 5, 48, 32


def mixture(
    x: torch.Tensor,
    logits: torch.Tensor,
    row_entry: torch.Tensor,
    num_used: int,
    *,
    renormalise: bool,
    activation: ClampedSwiglu | None = None,
) -> torch.Tensor:
    """Computes a layer of experts, with biases if it has an activation of its own, and compares it with torch."""
    generator = torch.Generator().manual_seed(7)
    both = torch.randn(NUM_EXPERTS, 2 * INNER, WIDTH, generator=generator).to(x) / WIDTH**0.5
    down = torch.randn(NUM_EXPERTS, WIDTH, INNER, generator=generator).to(x) / INNER**0.5
    biases = [torch.randn(NUM_EXPERTS, size, generator=generator).to(x) for size in (2 * INNER, WIDTH)]
    both_bias, down_bias = biases if activation is not None else (None, None)
    routes = route(logits, row_entry, num_used, renormalise=renormalise)
    inner_weight, down_weight = (
        DenseWeight.of("w", values.flatten(0, 1), None if bias is None else bias.flatten())
        for values, bias in ((both, both_bias), (down, down_bias))
    )
    inner = expert_product(x, inner_weight, routes, is_sorted=False, out_dtype=x.dtype)
    gate, up = inner.chunk(2, dim=1)
    hidden = activate(activation or SILU, gate, up)
    parts = expert_product(hidden, down_weight, routes, is_sorted=True, out_dtype=torch.float32)
    found = combine(parts, routes, row_entry, x.dtype)
    expected = torch.zeros_like(x)
    masses = logits.double().softmax(-1)
    for row in range(len(x)):
        if row_entry[row] < 0:
            continue
        chosen = torch.sort(logits[row], descending=True, stable=True).indices[:num_used]
        weights = masses[row, chosen] / (masses[row, chosen].sum() if renormalise else 1.0)
        for expert, weight in zip(chosen, weights, strict=True):
            gate, up = F.linear(x[row], both[expert], None if both_bias is None else both_bias[expert]).chunk(2)
            out_bias = None if down_bias is None else down_bias[expert]
            expected[row] += weight.to(x.dtype) * F.linear(_activated(gate, up, activation), down[expert], out_bias)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    return found


@pytest.mark.parametrize(("num_used", "renormalise"), [(1, True), (2, False), (5, True)])
def test_a_row_depends_on_its_own_experts_only(device: str, num_used: int, renormalise: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    # All sizes have tiles of few rows, because the interpreter's products depend on the tile.
    x = torch.randn(16, WIDTH, generator=generator).to(device)
    # Few different values, so that some are equal.
    logits = torch.randint(0, 6, (16, NUM_EXPERTS), generator=generator).float().to(device)
    entries = torch.zeros(16, dtype=torch.int32, device=device)
    entries[12:] = -1
    whole = mixture(x, logits, entries, num_used, renormalise=renormalise)
    assert not whole[12:].any()
    for row in (0, 11):
        alone = slice(row, row + 1)
        found = mixture(x[alone], logits[alone], entries[alone], num_used, renormalise=renormalise)
        assert torch.equal(found, whole[alone])


def test_experts_with_biases_and_a_clamp(device: str) -> None:
    generator = torch.Generator().manual_seed(4)
    x, logits = (torch.randn(16, size, generator=generator).to(device) for size in (WIDTH, NUM_EXPERTS))
    entries = torch.zeros(16, dtype=torch.int32, device=device)
    activation = ClampedSwiglu(alpha=1.702, limit=0.9)
    whole = mixture(x, logits, entries, 2, renormalise=True, activation=activation)
    alone = mixture(x[5:6], logits[5:6], entries[5:6], 2, renormalise=True, activation=activation)
    assert torch.equal(alone, whole[5:6])


def test_logits_that_are_not_numbers_make_only_their_row_invalid(device: str) -> None:
    x, entries = torch.ones(3, WIDTH, device=device), torch.zeros(3, dtype=torch.int32, device=device)
    logits = torch.zeros(3, NUM_EXPERTS, device=device)
    logits[1, 2] = float("nan")
    routes = route(logits, entries, 2, renormalise=True)
    assert torch.equal(routes.weights[0], routes.weights[2])
    parts = torch.ones(6, WIDTH, device=device)
    assert combine(parts, routes, entries, x.dtype).isnan().any(1).tolist() == [False, False, False]
    logits[1] = float("nan")
    routes = route(logits, entries, 2, renormalise=True)
    assert combine(parts, routes, entries, x.dtype).isnan().all(1).tolist() == [False, True, False]
    assert sorted(routes.order.tolist()) == list(range(6))
