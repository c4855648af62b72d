"""Experts against the reference backend's, and each row against itself among other rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cuda.kv_oracle import random
from tests.tiers import full
from trunkline_server.backends.cuda.kernels.activation import SILU, activate
from trunkline_server.backends.cuda.kernels.experts import combine, expert_product, route
from trunkline_server.backends.cuda.weights import DenseWeight
from trunkline_server.backends.reference.ops import ReferenceOps, Step
from trunkline_server.models.ops import ClampedSwiglu, Experts

WIDTH, INNER, NUM_ROWS, NUM_PADDING = 48, 32, 16, 4
CLAMPED = ClampedSwiglu(alpha=1.702, limit=0.9)
# The choices of DeepSeek-V3 and of V2.
BY_TWO_BEST, BY_BEST = {"sigmoid": True, "choice_bias": "choice"}, {"sigmoid": False}


def mixture(
    x: torch.Tensor, logits: torch.Tensor, entries: torch.Tensor, experts: Experts, weights: dict[str, torch.Tensor]
) -> torch.Tensor:
    """Computes a layer of experts with the kernels."""

    def stacked(*parts: tuple[str, ...]) -> torch.Tensor:
        """Returns the weights of all experts below each other, each expert's parts in order."""
        return torch.cat([weights[name] for of_expert in zip(*parts, strict=True) for name in of_expert])

    routes = route(
        logits, entries, experts.num_used, renormalise=experts.renormalise, sigmoid=experts.sigmoid,
        choice_bias=None if experts.choice_bias is None else weights[experts.choice_bias],
        num_groups=experts.num_groups, num_used_groups=experts.num_used_groups,
    )  # fmt: skip
    biases = [None, None] if experts.biases is None else [stacked(*experts.biases[:2]), stacked(experts.biases[2])]
    both = DenseWeight.of("both", stacked(experts.gate, experts.up), biases[0])
    gate, up = expert_product(x, both, routes, is_sorted=False, out_dtype=x.dtype).chunk(2, dim=1)
    hidden = activate(experts.activation or SILU, gate, up)
    down = DenseWeight.of("down", stacked(experts.down), biases[1])
    parts = expert_product(hidden, down, routes, is_sorted=True, out_dtype=torch.float32)
    return combine(parts, routes, entries, x.dtype)


@pytest.mark.parametrize(
    ("num_experts", "settings"),
    [
        (5, {"num_used": 1, "renormalise": True}),
        (5, {"num_used": 2, "renormalise": False}),
        (5, {"num_used": 5, "renormalise": True}),
        (5, {"num_used": 2, "renormalise": True, "activation": CLAMPED}),
        (12, {"num_used": 3, "renormalise": True, "num_groups": 4, "num_used_groups": 2, **BY_TWO_BEST}),
        full(12, {"num_used": 3, "renormalise": False, "num_groups": 4, "num_used_groups": 2, **BY_TWO_BEST}),
        (20, {"num_used": 4, "renormalise": False, "num_groups": 5, "num_used_groups": 1, **BY_BEST}),
        full(20, {"num_used": 4, "renormalise": True, "num_groups": 5, "num_used_groups": 1, **BY_BEST}),
        full(9, {"num_used": 4, "renormalise": True, "sigmoid": True}),
        full(6, {"num_used": 4, "renormalise": True, "num_groups": 3, "num_used_groups": 2, **BY_TWO_BEST}),
    ],
)
def test_a_row_depends_on_its_own_experts_only(num_experts: int, settings: dict[str, Any], device: str) -> None:
    shapes = {"gate": (INNER, WIDTH), "up": (INNER, WIDTH), "down": (WIDTH, INNER)}
    names = {part: tuple(f"{part} {expert}" for expert in range(num_experts)) for part in shapes}
    weights = {
        name: random(*shapes[name.split()[0]], seed=seed) / 6 for seed, name in enumerate(sum(names.values(), ()))
    }
    weights["choice"] = random(num_experts, seed=1)
    if "activation" in settings:
        biases = {f"{name} bias": random(len(weight), seed=seed) for seed, (name, weight) in enumerate(weights.items())}
        weights |= biases
        settings = {**settings, "biases": tuple(tuple(f"{name} bias" for name in part) for part in names.values())}
    experts = Experts(**names, **settings)
    # All sizes have tiles of few rows, because the interpreter's products depend on the tile.
    x = random(NUM_ROWS, WIDTH)
    # Without groups few different values, so that some are equal.
    logits = random(NUM_ROWS, num_experts, seed=3)
    logits = logits if "num_groups" in settings else (2 * logits).round()
    none = torch.empty(0, dtype=torch.int64)
    step = Step(token_ids=none, positions=none, rows=[], sampling_rows=none)
    reference = ReferenceOps(weights.__getitem__, None, step)  # type: ignore[arg-type]
    expected = reference.experts(x, logits, experts)
    x, logits, weights = x.to(device), logits.to(device), {name: weight.to(device) for name, weight in weights.items()}
    entries = torch.zeros(NUM_ROWS, dtype=torch.int32, device=device)
    entries[-NUM_PADDING:] = -1
    whole = mixture(x, logits, entries, experts, weights)
    torch.testing.assert_close(whole[:-NUM_PADDING].cpu(), expected[:-NUM_PADDING], rtol=1e-4, atol=1e-5)
    assert not whole[-NUM_PADDING:].any()
    for row in (0, NUM_ROWS - NUM_PADDING - 1):
        alone = slice(row, row + 1)
        assert torch.equal(mixture(x[alone], logits[alone], entries[alone], experts, weights), whole[alone])


def test_logits_that_are_not_numbers_make_only_their_row_invalid(device: str) -> None:
    entries = torch.zeros(3, dtype=torch.int32, device=device)
    logits = torch.zeros(3, 5, device=device)
    logits[1, 2] = float("nan")
    routes = route(logits, entries, 2, renormalise=True)
    assert torch.equal(routes.weights[0], routes.weights[2])
    parts = torch.ones(6, WIDTH, device=device)
    assert combine(parts, routes, entries, torch.float32).isnan().any(1).tolist() == [False, False, False]
    logits[1] = float("nan")
    routes = route(logits, entries, 2, renormalise=True)
    assert combine(parts, routes, entries, torch.float32).isnan().all(1).tolist() == [False, True, False]
    assert sorted(routes.order.tolist()) == list(range(6))


def test_logits_that_are_not_numbers_choose_experts_of_one_group(device: str) -> None:
    logits = torch.full((2, 8), float("nan"), device=device)
    logits[1, 5] = 1.0
    entries = torch.zeros(2, dtype=torch.int32, device=device)
    routes = route(logits, entries, 2, renormalise=True, sigmoid=True, num_groups=4, num_used_groups=1)
    experts_of_places = torch.repeat_interleave(torch.arange(8), routes.begins.cpu().diff())
    chosen = experts_of_places[routes.places.cpu().long()].view(2, 2)
    assert chosen.tolist() == [[0, 1], [5, 4]]
