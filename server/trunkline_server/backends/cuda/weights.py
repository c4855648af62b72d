"""Weights on the device, by how they are stored. Products with each kind: `kernels/linear.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import torch

from trunkline_server.backends.cuda.kernels.product_plan import ProductPlan


@dataclass(frozen=True, kw_only=True)
class DeviceWeight:
    """A matrix [N, K] of the model, or several below each other that are multiplied with the same x.

    slices: name of a weight in the checkpoint -> [begin, end) of its rows in this one; in the order of rows, without
        gaps. A matrix that stands alone is one slice.
    dtype: of activations that it is multiplied with, and of the result.
    bias: [N] f32, of all slices; None if no slice has one.
    """

    num_outputs: int
    num_inputs: int
    dtype: torch.dtype
    slices: Mapping[str, tuple[int, int]] = field(default_factory=lambda: MappingProxyType({}))
    bias: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_outputs, self.num_inputs

    @cached_property
    def plan(self) -> ProductPlan:
        """What the bits of products with it depend on, besides its kind."""
        return ProductPlan.of(self.num_outputs, self.num_inputs)

    @property
    def num_bytes(self) -> int:
        """On the device, bias included."""
        return sum(tensor.nbytes for tensor in vars(self).values() if isinstance(tensor, torch.Tensor))


@dataclass(frozen=True, kw_only=True)
class DenseWeight(DeviceWeight):
    """values: [N, K] in `dtype`, rows contiguous."""

    values: torch.Tensor

    @staticmethod
    def of(name: str, values: torch.Tensor, bias: torch.Tensor | None = None) -> DenseWeight:
        """A matrix that stands alone."""
        num_outputs, num_inputs = values.shape
        return DenseWeight(
            num_outputs=num_outputs,
            num_inputs=num_inputs,
            dtype=values.dtype,
            slices=MappingProxyType({name: (0, num_outputs)}),
            bias=bias,
            values=values,
        )
