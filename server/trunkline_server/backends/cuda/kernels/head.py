"""Logits of the rows that need them."""

from __future__ import annotations

import torch

from trunkline_server.backends.cuda.kernels.linear import library_linear, linear
from trunkline_server.backends.cuda.weights import DeviceWeight


def head(
    x: torch.Tensor,
    sampling_rows: torch.Tensor,
    weight: DeviceWeight,
    soft_cap: float | None = None,
    *,
    is_fast: bool = False,
) -> torch.Tensor:
    """The product of rows `sampling_rows` of x with the output head, in f32.

    x: [T, K]; sampling_rows: [S] i32 or i64, each in 0..T; weight: [V, K]; soft_cap: a logit s becomes
    soft_cap * tanh(s / soft_cap). is_fast: by the library. Returns [S, V] f32.
    """
    rows = torch.index_select(x, 0, sampling_rows)
    product = library_linear if is_fast else linear
    return product(rows, weight, soft_cap=soft_cap, out_dtype=torch.float32)
