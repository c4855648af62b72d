"""Reads rows of the embedding matrix."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.kernels.grouped import dequantized_rows
from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight
from trunkline_server.backends.cuda.weights import DenseWeight, DeviceWeight

_BLOCK = 1024


@triton.jit
def _embedding_kernel(token_ids, weight, out, weight_stride, num_elements, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    token_id = tl.load(token_ids + row).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < num_elements
    values = tl.load(weight + token_id * weight_stride + columns, mask, other=0.0).to(tl.float32)
    tl.store(out + row * num_elements + columns, values, mask)


def embedding(token_ids: torch.Tensor, weight: DeviceWeight) -> torch.Tensor:
    """Returns the rows of `weight` for the tokens of the step.

    token_ids: [T] i32, each in 0..V (the plan was checked for it); weight: [V, N], dense or grouped. Returns [T, N]
    f32.
    """
    num_rows, width = token_ids.shape[0], weight.shape[1]
    out = torch.empty(num_rows, width, dtype=torch.float32, device=token_ids.device)
    if isinstance(weight, GroupedWeight):
        return dequantized_rows(weight, token_ids, out)
    assert isinstance(weight, DenseWeight), f"{type(weight).__name__} has no single rows"
    if num_rows > 0:
        _embedding_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
            token_ids, weight.values, out, weight.values.stride(0), width, BLOCK=_BLOCK, num_warps=4
        )
    return out
