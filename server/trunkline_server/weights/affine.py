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
# The column of eight to which each nibble of AWQ's words belongs, from the lowest.
AWQ_COLUMNS = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])
_DTYPES: dict[str, np.dtype[Any]] = {
    "I32": np.dtype("<i4"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
}


def decoded(scheme: Quantization, name: str, parts: Mapping[str, Part]) -> Tensor:
    """Returns the weight [N, K] that a module's parts encode. name: of the weight. Raises UnsupportedFormat."""
    if isinstance(scheme, Gptq):
        return _gptq(scheme, name, parts)
    if isinstance(scheme, Awq):
        return _awq(scheme, name, parts)
    if isinstance(scheme, PackedIntegers):
        return _packed(scheme, name, parts)
    if isinstance(scheme, EightBits):
        return _eight_bits(scheme, name, parts)
    if isinstance(scheme, Mxfp4):
        return _mxfp4(name, parts)
    assert isinstance(scheme, FourBitFloats)
    return _four_bit_floats(name, parts)


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
    keeps = _keeps_integers(num_inputs, size, None if order is None else _integers(order))
    return f"AFFINE{bits}" if keeps else "BF16"


def _keeps_integers(num_inputs: int, group_size: int | None, order: Integers | None) -> bool:
    """Returns whether blocks of AFFINE4 or AFFINE8 can represent the groups; see `_grouped`."""
    size = num_inputs if group_size is None else min(group_size, num_inputs)
    if num_inputs % BLOCK != 0 or (size % BLOCK != 0 and size != num_inputs):
        return False
    return order is None or np.array_equal(order, np.arange(num_inputs, dtype=np.int32) // size)


def _gptq(scheme: Gptq, name: str, parts: Mapping[str, Part]) -> Tensor:
    by_word = unpacked_words(parts["qweight"], scheme.bits)  # [words of K, N, in a word]
    numbers = by_word.swapaxes(1, 2).reshape(-1, by_word.shape[1]).T
    stored = unpacked_words(parts["qzeros"], scheme.bits).astype(np.int32)
    zeros = (stored.reshape(len(stored), -1) + scheme.zero_offset) & ((1 << scheme.bits) - 1)
    order = _integers(parts["g_idx"]) if "g_idx" in parts else None
    return _grouped(name, scheme.bits, numbers, floats_of(parts["scales"]).T, zeros.T, scheme.group_size, order)


def _awq(scheme: Awq, name: str, parts: Mapping[str, Part]) -> Tensor:
    def columns(part: Part) -> Bytes:
        unpacked = unpacked_words(part, 4)[..., AWQ_COLUMNS]
        return unpacked.reshape(len(unpacked), -1)

    numbers, zeros = columns(parts["qweight"]).T, columns(parts["qzeros"]).T.astype(np.int32)
    return _grouped(name, 4, numbers, floats_of(parts["scales"]).T, zeros, scheme.group_size)


def _packed(scheme: PackedIntegers, name: str, parts: Mapping[str, Part]) -> Tensor:
    numbers = unpacked_words(parts["weight_packed"], scheme.bits)
    numbers = numbers.reshape(len(numbers), -1)
    scales = floats_of(parts["weight_scale"])
    # Signed integers, including zero points, are stored plus half the range.
    zeros = np.full(scales.shape, 1 << (scheme.bits - 1), dtype=np.int32)
    if not scheme.is_symmetric:
        by_word = unpacked_words(parts["weight_zero_point"], scheme.bits)  # [words of N, groups, in a word]
        zeros = by_word.swapaxes(1, 2).reshape(-1, by_word.shape[1])[: len(numbers)].astype(np.int32)
    order = _integers(parts["weight_g_idx"]) if "weight_g_idx" in parts else None
    return _grouped(name, scheme.bits, numbers, scales, zeros, scheme.group_size, order)


def _eight_bits(scheme: EightBits, name: str, parts: Mapping[str, Part]) -> Tensor:
    weight = parts["weight"]
    raw = np.frombuffer(weight.data, dtype=np.uint8).reshape(weight.shape)
    stored = floats_of(parts[scheme.scale_name])
    if scheme.block is not None:
        rows, columns = scheme.block
        scales = stored if len(stored) == len(raw) else stored.repeat(min(rows, len(raw)), 0)[: len(raw)]
    else:
        columns = raw.shape[1]
        scales = np.broadcast_to(stored.reshape(-1, 1) / np.float32(scheme.scale_divisor), (len(raw), 1))
    if not scheme.is_float:
        # Flipping the top bit of two's complement adds 128.
        zeros = np.full(scales.shape, 128, dtype=np.int32)
        return _grouped(name, 8, raw ^ np.uint8(0x80), scales, zeros, columns)
    return _rounded(name, _E4M3[raw] * scales.repeat(min(columns, raw.shape[1]), 1)[:, : raw.shape[1]])


def _four_bit_floats(name: str, parts: Mapping[str, Part]) -> Tensor:
    state = quantization_state(parts)
    shape, block = state["shape"], state["blocksize"]
    assert isinstance(shape, list) and isinstance(block, int), "checked when the file was opened"
    if shape[1] % block != 0:
        raise UnsupportedFormat(
            f"weight {quoted(name)} has rows of {shape[1]} elements in blocks of {block}, which is not supported",
            hint="use the unquantised model or a GGUF file",
        )
    peaks = absmax_of(parts, state)
    # The upper nibble comes first.
    pairs = np.frombuffer(parts["weight"].data, dtype=np.uint8)
    codes = np.stack([pairs >> np.uint8(4), pairs & np.uint8(15)], axis=1).reshape(shape)
    table = floats_of(parts["weight.quant_map"])
    return _rounded(name, table[codes] * peaks.reshape(shape[0], -1).repeat(block, 1))


def absmax_of(parts: Mapping[str, Part], state: Mapping[str, object]) -> Floats:
    """Returns the scale of each block of bitsandbytes. state: the result of `quantization_state`."""
    absmax = parts["weight.absmax"]
    if "weight.nested_absmax" not in parts:
        return floats_of(absmax)
    nested_block, offset = state["nested_blocksize"], state.get("nested_offset", 0.0)
    assert isinstance(nested_block, int) and isinstance(offset, float | int), "checked when the file was opened"
    nested = floats_of(parts["weight.nested_absmax"]).repeat(min(nested_block, absmax.shape[0]))[: absmax.shape[0]]
    codes = np.frombuffer(absmax.data, dtype=np.uint8)
    return floats_of(parts["weight.nested_quant_map"])[codes] * nested + np.float32(offset)


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


def _grouped(
    name: str,
    bits: int,
    numbers: Bytes,
    scales: Floats,
    zeros: Integers,
    group_size: int | None,
    order: Integers | None = None,
) -> Tensor:
    """Encodes `scale * (number - zero)`.

    numbers: unsigned, [N, K]; scales, zeros: [N, groups]; group_size: None for one group; order: each input's group,
    None if they follow each other.
    """
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


def unpacked_words(part: Part, bits: int) -> Bytes:
    """Unpacks i32 [..., n] to u8 [..., n, 32 / bits], from the lowest bits."""
    whole = np.frombuffer(part.data, dtype=np.uint8).reshape(*part.shape, 4)
    if bits == 8:
        return whole
    return np.stack([whole & np.uint8(15), whole >> np.uint8(4)], axis=-1).reshape(*part.shape, 8)


def _integers(part: Part) -> Integers:
    values: Integers = np.frombuffer(part.data, dtype=_DTYPES["I32"]).reshape(part.shape)
    return values


def floats_of(part: Part) -> Floats:
    values = np.frombuffer(part.data, dtype=_DTYPES[part.dtype]).reshape(part.shape)
    if part.dtype == "BF16":
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32)


def _e4m3() -> Floats:
    """Returns the numbers of all bytes of e4m3 without infinities (OCP 8-bit floating point, 4.1)."""
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    magnitude = np.where(exponent == 0, mantissa / 8 * 2.0**-6, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    magnitude[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, magnitude, -magnitude).astype(np.float32)


_E4M3 = _e4m3()
