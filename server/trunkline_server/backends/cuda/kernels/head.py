"""Computes logits of the rows that need them."""

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
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiplies rows `sampling_rows` of x by the output head, in f32.

    x: [T, K]; sampling_rows: [S] i32 or i64, each in 0..T; weight: [V, K]; soft_cap: a logit s becomes soft_cap *
    tanh(s / soft_cap). is_fast: use the library's product. Returns [S, V] f32, in `out` if it is given.
    """
    rows = torch.index_select(x, 0, sampling_rows)
    if not is_fast:
        return linear(rows, weight, soft_cap=soft_cap, out_dtype=torch.float32, out=out)
    product = library_linear(rows, weight, soft_cap=soft_cap, out_dtype=torch.float32)
    return product if out is None else out.copy_(product)
