"""Rounding of K and V, with the same numbers as the tests of the kernels."""

from __future__ import annotations

import torch
from trunkline_server.backends.reference.rounding import to_bytes


def test_a_head_becomes_the_same_bytes_as_in_the_kernels() -> None:
    """The same case as in `kernels/core/src/ops/quantize_head.rs`: 1.9 / 127 rounds to the bf16 number 245 / 2^14."""
    rounded = to_bytes(torch.tensor([1.9, -1.9, 0.5, -0.26, 0.0075, 0.007]))
    expected = torch.tensor([127.0, -127.0, 33.0, -17.0, 1.0, 0.0]) * (245 / 16384)
    assert torch.equal(rounded, expected)


def test_zeros_stay_zeros_and_non_finite_heads_become_nan() -> None:
    heads = torch.tensor([[0.0, -0.0, 1e-40], [0.0, torch.inf, 1.0], [torch.nan, 0.0, 1.0]])
    rounded = to_bytes(heads)
    assert torch.equal(rounded[0], torch.zeros(3))
    assert rounded[1:].isnan().all()
