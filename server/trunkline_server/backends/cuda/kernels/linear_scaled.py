"""Products of weights and activations of 8 bits (FP8 or INT8) on the tensor cores, scaled after the sum.

INT8 sums are exact. FP8 sums are those of the dense kernels, with the same blocks of K for any number of rows.
"""

from __future__ import annotations

import torch

from trunkline_server.backends.cuda.kernels.linear_dense import dense_linear
from trunkline_server.backends.cuda.kernels.product import ProductEnd, Unsummed
from trunkline_server.backends.cuda.kernels.quantize_rows import quantize_rows
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight


def scaled_linear(x: torch.Tensor, weight: ScaledWeight, end: ProductEnd, out: torch.Tensor) -> torch.Tensor | Unsummed:
    """Rounds x [T, K] bf16 or f16 to the weight's 8 bits and multiplies it by the weight's transpose: out [T, N]."""
    values, scales = quantize_rows(x, weight.values.dtype, weight.input_scale, weight.input_limit)
    end = ProductEnd(end.bias, end.soft_cap, (weight.scales, scales))
    return dense_linear(values, weight.values, weight.plan, end, out)
