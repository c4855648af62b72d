"""Narrowing and tensor-core products as every kernel does them, on the device and under Triton's interpreter.

The interpreter keeps bf16 as 16-bit integers, truncates where the device rounds to nearest even, and would multiply the
integers of a bf16 product. With these two functions it computes what the device does, up to the order of sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

# Whether kernels run in Triton's interpreter, on tensors of the CPU: TRITON_INTERPRET=1 before triton is imported.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

# Of torch's dtypes that activations and weights have, Triton's.
TRITON_DTYPES = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """f32 as `dtype`, rounded to nearest even."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        is_nan = x != x
        result = tl.where(is_nan, 0x7FC0, rounded).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    else:
        result = x.to(dtype)
    return result


@triton.jit
def dot(a, b, acc):
    """acc + a @ b in f32; a and b of one dtype: bf16, f16, or f32 without rounding it to TF32."""
    if INTERPRETED:
        result = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        result = tl.dot(a, b, acc, input_precision="ieee")
    return result
