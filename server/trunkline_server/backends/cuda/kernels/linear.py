"""Products with weights of every kind."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from trunkline_server.backends.cuda.kernels.linear_dense import dense_linear
from trunkline_server.backends.cuda.kernels.linear_grouped import grouped_linear
from trunkline_server.backends.cuda.kernels.product import ProductEnd, Unsummed, summed
from trunkline_server.backends.cuda.kernels.quantize_rows import quantize_rows
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight


def linear(
    x: torch.Tensor,
    weight: DeviceWeight,
    *,
    has_bias: bool = False,
    soft_cap: float | None = None,
    out_dtype: torch.dtype | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Multiplies x [T, K] by the transpose of `weight` [N, K], then adds its bias if `has_bias` and applies the soft
    cap.

    x: `weight.dtype`, rows contiguous. Returns [T, N] `out_dtype` (f32, bf16 or f16; None: the weight's), in `out` if
    it is given. Sums in f32; a row's bits depend only on that row and the weight.
    """
    if out is None:
        out = torch.empty(x.shape[0], weight.num_outputs, dtype=out_dtype or weight.dtype, device=x.device)
    return summed(_product(x, weight, ProductEnd(weight.bias if has_bias else None, soft_cap), out))


def unsummed_linear(x: torch.Tensor, weight: DeviceWeight, *, has_bias: bool = False) -> torch.Tensor | Unsummed:
    """Computes `linear`, but leaves splits that other programs computed to `summed` or `add_rms_norm`."""
    out = torch.empty(x.shape[0], weight.num_outputs, dtype=weight.dtype, device=x.device)
    return _product(x, weight, ProductEnd(weight.bias if has_bias else None), out)


def _product(x: torch.Tensor, weight: DeviceWeight, end: ProductEnd, out: torch.Tensor) -> torch.Tensor | Unsummed:
    assert x.shape[1] == weight.num_inputs, f"x is {list(x.shape)}, the weight {list(weight.shape)}"
    if x.shape[0] == 0:
        return out
    if isinstance(weight, DenseWeight):
        return dense_linear(x, weight.values, weight.plan, end, out)
    if isinstance(weight, GroupedWeight):
        return grouped_linear(x, weight, end, out)
    if isinstance(weight, ScaledWeight):
        # Sums of INT8 are exact, those of FP8 in the dense kernels' blocks of K for any number of rows.
        values, scales = quantize_rows(x, weight.values.dtype, weight.input_scale, weight.input_limit)
        return dense_linear(values, weight.values, weight.plan, end._replace(scales=(weight.scales, scales)), out)
    raise NotImplementedError(f"no product with {type(weight).__name__}")


def library_linear(
    x: torch.Tensor,
    weight: DeviceWeight,
    *,
    has_bias: bool = False,
    soft_cap: float | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Computes `linear` with the library's product, whose bits depend on the number of rows: `--numerics fast`.

    Weights that are not dense are multiplied as in `linear`.
    """
    if not isinstance(weight, DenseWeight):
        return linear(x, weight, has_bias=has_bias, soft_cap=soft_cap, out_dtype=out_dtype)
    bias = weight.bias.to(weight.dtype) if has_bias and weight.bias is not None else None
    product = F.linear(x, weight.values, bias).to(out_dtype or weight.dtype)
    return product if soft_cap is None else soft_cap * torch.tanh(product / soft_cap)
