"""Weights on the device, by storage kind. `kernels/linear.py` has the products of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import torch

from trunkline_server.backends.cuda.kernels.product_plan import ProductPlan


@dataclass(frozen=True, kw_only=True)
class DeviceWeight:
    """A matrix [N, K] of the model, or a stack of several that are multiplied with the same x.

    slices: name of a weight in the checkpoint -> [begin, end) of its rows in this matrix, in the order of rows, without
        gaps. A single matrix is one slice.
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
        """The plan of products with this weight, which fixes their bits together with the weight's kind."""
        return ProductPlan.of(self.num_outputs, self.num_inputs)

    @property
    def num_bytes(self) -> int:
        """Size on the device, bias included."""
        return sum(tensor.nbytes for tensor in vars(self).values() if isinstance(tensor, torch.Tensor))


@dataclass(frozen=True, kw_only=True)
class DenseWeight(DeviceWeight):
    """A matrix whose elements are not quantised. values: [N, K] in `dtype`, rows contiguous."""

    values: torch.Tensor

    @staticmethod
    def of(name: str, values: torch.Tensor, bias: torch.Tensor | None = None) -> DenseWeight:
        """Makes a matrix of one slice."""
        num_outputs, num_inputs = values.shape
        return DenseWeight(
            num_outputs=num_outputs,
            num_inputs=num_inputs,
            dtype=values.dtype,
            slices=MappingProxyType({name: (0, num_outputs)}),
            bias=bias,
            values=values,
        )


class DeviceWeights:
    """All weights of a model, by their names in the checkpoint.

    Query, key and value projections are stacked into one matrix, and so are gate and up, if their kinds agree.
    """

    def __init__(
        self, matrices: Sequence[DeviceWeight], vectors: Mapping[str, torch.Tensor], aliases: Mapping[str, str]
    ) -> None:
        """Takes matrices, norms and biases. aliases: maps a tied weight's name to the name under which it is stored."""
        self.matrices, self._vectors = matrices, vectors
        self._places = {name: (matrix, *rows) for matrix in matrices for name, rows in matrix.slices.items()}
        self._places |= {name: self._places[stored] for name, stored in aliases.items()}

    def matrix(self, name: str) -> tuple[DeviceWeight, int, int]:
        """Returns the matrix that holds this weight, and [begin, end) of its rows there. Raises KeyError."""
        return self._places[name]

    def vector(self, name: str) -> torch.Tensor:
        """Returns a norm's weight or a bias, f32. Raises KeyError."""
        return self._vectors[name]

    @property
    def num_bytes(self) -> int:
        """Size on the device; a tied weight counts once."""
        return sum(matrix.num_bytes for matrix in self.matrices) + sum(one.nbytes for one in self._vectors.values())
