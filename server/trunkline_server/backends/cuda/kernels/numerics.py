"""Narrowing and tensor-core products, shared by all kernels, on the device and in Triton's interpreter.

The interpreter stores bf16 as 16-bit integers, truncates where the device rounds to nearest even, and would multiply
the integers of a bf16 product. With these functions it computes what the device does, up to the order of sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

# True if kernels run in Triton's interpreter on CPU tensors: TRITON_INTERPRET=1 before triton is imported.
INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))

# Positions of a tile of attention. The order of its sums, and so its bits, depend on it.
TILE_POSITIONS = tl.constexpr(64)

# Triton's dtypes for torch's, of activations and weights.
TRITON_DTYPES = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float8_e4m3fn: tl.float8e4nv,
}


# Tensor cores of Ada and Hopper add products of e4m3 with about 14 bits (arXiv:2412.19437, section 3.3.2;
# arXiv:2411.10958), so sums of this many inputs are added in f32.
FP8_GROUP = tl.constexpr(128)
# The largest number of e4m3, and the smallest normal one.
E4M3_MAX = tl.constexpr(448.0)
_E4M3_NORMAL = tl.constexpr(2.0**-6)
# Adding it rounds numbers below 2^-6 to multiples of 2^-9, to nearest even, and leaves the multiple in the low bits.
_SUBNORMAL_SHIFT = tl.constexpr(2.0**14)
_SUBNORMAL_SHIFT_BITS = tl.constexpr(0x46800000)
# Shifts the exponent, whose bias is 7 instead of 127.
_E4M3_SHIFT = tl.constexpr(2.0**120)


@triton.jit
def e4m3_codes(magnitude):
    """Returns u32 codes of magnitudes up to `E4M3_MAX`, rounded to nearest even (arXiv:2209.05433); NaN stays NaN."""
    bits = magnitude.to(tl.uint32, bitcast=True)
    # The exponent's bias is 7 instead of 127; 20 bits of the mantissa are dropped.
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    subnormal = (magnitude + _SUBNORMAL_SHIFT).to(tl.uint32, bitcast=True) - _SUBNORMAL_SHIFT_BITS
    codes = tl.where(magnitude < _E4M3_NORMAL, subnormal, normal)
    return tl.where(magnitude == magnitude, codes, 0x7F)


@triton.jit
def e4m3_by_bits(codes):
    """Converts u8 codes of e4m3 to f32, exactly, by arithmetic."""
    bits = codes.to(tl.uint32)
    shifted = ((bits & 0x80) << 24) | ((bits & 0x7F) << 20)
    numbers = shifted.to(tl.float32, bitcast=True) * _E4M3_SHIFT
    return tl.where((bits & 0x7F) == 0x7F, float("nan"), numbers)


@triton.jit
def from_e4m3(codes, dtype: tl.constexpr):
    """Converts u8 codes of e4m3 to f32, bf16 or f16, which represent each of them exactly."""
    if INTERPRETED:
        # The interpreter converts the code of NaN to 480.
        result = narrow(e4m3_by_bits(codes), dtype)
    elif cuda_capability_geq(8, 9):
        result = codes.to(tl.float8e4nv, bitcast=True).to(dtype)
    else:
        # The device does not support e4m3.
        result = e4m3_by_bits(codes).to(dtype)
    return result


@triton.jit
def narrow(x, dtype: tl.constexpr):
    """Rounds f32 to `dtype`, to nearest even. For e4m3, numbers must be within its range."""
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        is_nan = x != x
        result = tl.where(is_nan, 0x7FC0, rounded).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    elif INTERPRETED and dtype == tl.float8e4nv:
        sign = x.to(tl.uint32, bitcast=True) >> 31 << 7
        result = (e4m3_codes(tl.abs(x)) | sign).to(tl.uint8).to(tl.float8e4nv, bitcast=True)
    else:
        result = x.to(dtype)
    return result


@triton.jit
def dot(a, b, acc):
    """Returns acc + a @ b. a, b: of one dtype, bf16, f16, e4m3 or f32 (not rounded to TF32), with acc f32; or i8 with
    i32.

    For e4m3, a has `FP8_GROUP` columns.
    """
    if a.dtype == tl.int8:
        result = tl.dot(a, b, acc, out_dtype=tl.int32)
    elif INTERPRETED:
        result = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    elif a.dtype == tl.float8e4nv and cuda_capability_geq(9) and not cuda_capability_geq(12):
        # Blackwell's tensor memory adds in f32 by itself and ignores this limit.
        result = tl.dot(a, b, acc, max_num_imprecise_acc=FP8_GROUP)
    elif a.dtype == tl.float8e4nv:
        # With a limit given, Triton does not fuse the sum into the product.
        result = acc + tl.dot(a, b, max_num_imprecise_acc=FP8_GROUP)
    else:
        result = tl.dot(a, b, acc, input_precision="ieee")
    return result
