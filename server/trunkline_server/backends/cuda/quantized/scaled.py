"""Weights of 8 bits with one scale per row, multiplied with activations of 8 bits on the tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunkline_server.backends.cuda.weights import DeviceWeight


@dataclass(frozen=True, kw_only=True)
class ScaledWeight(DeviceWeight):
    """A weight whose row n is values[n] * scales[n].

    values: [N, K] e4m3 or i8, rows contiguous; scales: [N] f32.
    input_scale: f32 [1], divides activations before they are rounded; None: each row of activations has its own scale,
        which maps its largest element to the largest number of the format.
    input_limit: a row's own scale is chosen as if no element exceeded this; larger ones become the largest number.
    """

    values: torch.Tensor
    scales: torch.Tensor
    input_scale: torch.Tensor | None = None
    input_limit: float | None = None
