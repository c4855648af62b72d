"""Decodes the quantised modules of safetensors checkpoints for backends whose kernels read GGUF's formats.

Groups of integers stay what they were, in the formats AFFINE4 and AFFINE8 of `tensor.py`. Floats of 4 and 8 bits,
groups that are not multiples of 32 inputs, and groups whose inputs are in another order (`desc_act`) become BF16.
MXFP4 becomes GGUF's format of this name, whose bytes have other elements in their halves.
`quantized_parts.py` describes the files' tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trunkline_server.errors import UnsupportedFormat, quoted
from trunkline_server.weights.module_numbers import GroupedIntegers, four_bit_floats, integers_of, scales_of_bytes
from trunkline_server.weights.quantization import (
    Awq,
    EightBits,
    FourBitFloats,
    Gptq,
    Mxfp4,
    PackedIntegers,
    Quantization,
)
from trunkline_server.weights.quantized_parts import Part, quantization_state
from trunkline_server.weights.tensor import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Integers = NDArray[np.int32]
    Floats = NDArray[np.float32]

# Inputs of a block of AFFINE4 and AFFINE8.
BLOCK = 32
_DTYPES: dict[str, np.dtype[Any]] = {
    "I32": np.dtype("<i4"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
}


def decoded(scheme: Quantization, name: str, parts: Mapping[str, Part]) -> Tensor:
    """Returns the weight [N, K] that a module's parts encode. name: of the weight. Raises UnsupportedFormat."""
    if isinstance(scheme, Mxfp4):
        return _mxfp4(name, parts)
    arrays = {suffix: array_of(part) for suffix, part in parts.items()}
    if isinstance(scheme, FourBitFloats):
        codes, scales, block = four_bit_floats(name, arrays, quantization_state(parts))
        return _rounded(name, arrays["weight.quant_map"][codes] * scales.repeat(block, 1))
    if isinstance(scheme, EightBits) and scheme.is_float:
        raw = arrays["weight"]
        scales, columns = scales_of_bytes(scheme, arrays)
        width = raw.shape[1] if columns is None else min(columns, raw.shape[1])
        return _rounded(name, _E4M3[raw] * scales.repeat(width, 1)[:, : raw.shape[1]])
    return _grouped(name, integers_of(scheme, arrays))


def decoded_format(scheme: Quantization, parts: Mapping[str, Part], num_inputs: int) -> str:
    """Returns the format of the weight that `decoded` makes of a module's parts, without decoding them."""
    order = None
    match scheme:
        case Gptq():
            bits, size, order = scheme.bits, scheme.group_size, parts.get("g_idx")
        case Awq():
            bits, size = 4, scheme.group_size
        case PackedIntegers():
            bits, size, order = scheme.bits, scheme.group_size, parts.get("weight_g_idx")
        case EightBits(is_float=False):
            bits, size = 8, num_inputs if scheme.block is None else scheme.block[1]
        case Mxfp4():
            return "MXFP4"
        case _:
            return "BF16"
    keeps = _keeps_integers(num_inputs, size, None if order is None else array_of(order))
    return f"AFFINE{bits}" if keeps else "BF16"


def _keeps_integers(num_inputs: int, group_size: int | None, order: Integers | None) -> bool:
    """Returns True if blocks of AFFINE4 or AFFINE8 can represent the groups; see `_grouped`."""
    size = num_inputs if group_size is None else min(group_size, num_inputs)
    if num_inputs % BLOCK != 0 or (size % BLOCK != 0 and size != num_inputs):
        return False
    return order is None or np.array_equal(order, np.arange(num_inputs, dtype=np.int32) // size)


def _mxfp4(name: str, parts: Mapping[str, Part]) -> Tensor:
    blocks, scales = (np.asarray(parts[suffix].data) for suffix in ("blocks", "scales"))
    # A byte has elements 2 i and 2 i + 1 in the file, and elements i and i + 16 in GGUF's format.
    low, high = blocks[..., :8], blocks[..., 8:]
    groups = np.empty((*scales.shape, 17), dtype=np.uint8)
    groups[..., 0] = scales
    groups[..., 1::2] = (low & np.uint8(15)) | (high << np.uint8(4))
    groups[..., 2::2] = (low >> np.uint8(4)) | (high & np.uint8(0xF0))
    data = groups.reshape(-1)
    data.flags.writeable = False
    return Tensor(name=name, format="MXFP4", shape=(scales.shape[0], scales.shape[1] * BLOCK), data=data)


def _grouped(name: str, stored: GroupedIntegers) -> Tensor:
    bits, numbers, scales = stored.bits, stored.numbers, stored.scales
    group_size, order = stored.group_size, stored.order
    zeros = np.broadcast_to(np.asarray(stored.zeros, np.int32), scales.shape)
    num_outputs, num_inputs = numbers.shape
    size = num_inputs if group_size is None else min(group_size, num_inputs)
    groups = np.arange(num_inputs, dtype=np.int32) // size if order is None else order
    if groups.min() < 0 or groups.max() >= scales.shape[1]:
        raise UnsupportedFormat(f"weight {quoted(name)} has inputs of groups that do not exist")
    if not _keeps_integers(num_inputs, group_size, order):
        return _rounded(name, scales[:, groups] * (numbers.astype(np.int32) - zeros[:, groups]).astype(np.float32))
    first = groups[::BLOCK]
    # Numbers of 8 bits are stored signed.
    offset = 0 if bits == 4 else 128
    minima = -(scales * (zeros - offset).astype(np.float32))
    blocks = np.empty((num_outputs, num_inputs // BLOCK, 8 + BLOCK * bits // 8), dtype=np.uint8)
    for at, values in ((0, scales), (4, minima)):
        of_blocks = np.ascontiguousarray(values[:, first], dtype="<f4")
        blocks[:, :, at : at + 4] = of_blocks.view(np.uint8).reshape(num_outputs, -1, 4)
    by_block = numbers.reshape(num_outputs, -1, BLOCK)
    if bits == 4:
        np.bitwise_or(by_block[:, :, :16], by_block[:, :, 16:] << np.uint8(4), out=blocks[:, :, 8:])
    else:
        np.bitwise_xor(by_block, np.uint8(0x80), out=blocks[:, :, 8:])
    data = blocks.reshape(-1)
    data.flags.writeable = False
    return Tensor(name=name, format=f"AFFINE{bits}", shape=numbers.shape, data=data)


def _rounded(name: str, values: Floats) -> Tensor:
    """Rounds to BF16, ties to even."""
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    data = rounded.astype("<u2").reshape(-1).view(np.uint8)
    data.flags.writeable = False
    return Tensor(name=name, format="BF16", shape=values.shape, data=data)


def array_of(part: Part) -> NDArray[Any]:
    """Returns a part as i32, as f32, or as the bytes of smaller numbers."""
    values = np.frombuffer(part.data, dtype=_DTYPES.get(part.dtype, np.uint8)).reshape(part.shape)
    if part.dtype == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32) if part.dtype == "F16" else values


def _e4m3() -> Floats:
    """Returns the numbers of all bytes of e4m3 without infinities (OCP 8-bit floating point, 4.1)."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, magnitude, -magnitude).astype(np.float32)


_E4M3 = _e4m3()
