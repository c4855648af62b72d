"""DoRA (arXiv:2402.09353): each row of W + scale * B A is scaled to a learned length, its magnitude.

The weight is diag(g) (W + scale * B A), where the gain g is the magnitude of each row divided by its norm. Where a
request scales what the adapter adds by c, the weight is W + c (diag(g) (W + scale * B A) - W), so the product with x is

    (1 + c (g - 1)) W x  +  c g scale * B (A x)

to which the bias is added. Backends compute it from their own product, which has the bias already.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trunkline_server.weights.dequantize import dequantize
from trunkline_server.weights.tensor import Tensor

# Rows of B A that are computed at a time.
_ROWS = 256


def gain_of(weight: Tensor, a: Tensor, b: Tensor, scale: float, magnitude: Tensor) -> NDArray[np.float32]:
    """Returns the gain of each row, [N], in the model's order. A row of zeros has 1, which makes no difference."""
    rows, down, up = dequantize(weight), dequantize(a), np.float32(scale) * dequantize(b)
    norms = np.empty(len(rows), np.float32)
    for first in range(0, len(rows), _ROWS):
        part = slice(first, first + _ROWS)
        norms[part] = np.linalg.norm(rows[part] + up[part] @ down, axis=1)
    with np.errstate(over="ignore"):
        return np.divide(dequantize(magnitude), norms, out=np.ones_like(norms), where=norms > 0)
