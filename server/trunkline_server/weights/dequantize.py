"""Raw weights as f32, in numpy. The reference backend computes with them, and the kernels are compared to them.

Layouts: `ggml-common.h` of ggml; the arithmetic follows `ggml-quants.c` (`dequantize_row_*`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server.weights.tensor import ALL_FORMATS, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

# Number of elements decoded at a time, which bounds the temporaries (about 20 bytes per element).
_CHUNK_ELEMENTS = 1 << 20


# The levels of IQ4_NL and IQ4_XS, `kvalues_iq4nl` of ggml.
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.float32)


# Formats that the kernels unpack, because they need tables or few people have them.
UNPACKED_FORMATS = ("Q2_K", "TQ1_0", "TQ2_0", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M")


def dequantize(tensor: Tensor) -> Floats:
    """Returns the tensor in its shape and with its rows in the model's order, as a new f32 array.

    Exact: each format's values are f32 numbers up to one rounding.
    """
    stored_as = ALL_FORMATS[tensor.format]
    decode = _DECODERS[tensor.format]
    groups = np.frombuffer(tensor.data, dtype=np.uint8).reshape(-1, stored_as.group_bytes)
    result = np.empty((groups.shape[0], stored_as.group_elements), dtype=np.float32)
    step = _CHUNK_ELEMENTS // stored_as.group_elements
    for begin in range(0, groups.shape[0], step):
        # Copied so that the views below are aligned, wherever the tensor lies in its file.
        result[begin : begin + step] = decode(groups[begin : begin + step].copy())
    values: Floats = result.reshape(tensor.shape)
    if tensor.interleaved_heads is None:
        return values
    # The rotated rows of each head are stored in the order 0, h, 1, h + 1, ...; see places.py.
    head_size, rotary_size = tensor.interleaved_heads
    rotated = values.reshape(-1, head_size, *tensor.shape[1:])[:, :rotary_size]
    pairs = rotated.reshape(len(rotated), rotary_size // 2, 2, *tensor.shape[1:])
    rotated[:] = pairs.swapaxes(1, 2).reshape(rotated.shape)
    return values


def _f32(groups: Bytes) -> Floats:
    return groups.view(np.float32)


def _f16(groups: Bytes) -> Floats:
    return groups.view(np.float16).astype(np.float32)


def _bf16(groups: Bytes) -> Floats:
    """Elements are the upper halves of f32 numbers."""
    return (groups.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


def _q8_0(groups: Bytes) -> Floats:
    """Layout: f16 scale, 32 int8."""
    return _half(groups, 0) * groups[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(groups: Bytes) -> Floats:
    """Layout: f16 scale, 32 nibbles; numbers are nibbles minus 8."""
    return _half(groups, 0) * (_nibbles(groups[:, 2:]).astype(np.float32) - np.float32(8))


def _q4_1(groups: Bytes) -> Floats:
    """Layout: f16 scale, f16 minimum, 32 nibbles."""
    return _half(groups, 0) * _nibbles(groups[:, 4:]).astype(np.float32) + _half(groups, 2)


def _q5_0(groups: Bytes) -> Floats:
    """Layout: f16 scale, 4 bytes of fifth bits, 32 nibbles; numbers are minus 16."""
    return _half(groups, 0) * (_five_bits(groups[:, 2:6], groups[:, 6:]).astype(np.float32) - np.float32(16))


def _q5_1(groups: Bytes) -> Floats:
    """Layout: f16 scale, f16 minimum, 4 bytes of fifth bits, 32 nibbles."""
    return _half(groups, 0) * _five_bits(groups[:, 4:8], groups[:, 8:]).astype(np.float32) + _half(groups, 2)


def _q4_k(groups: Bytes) -> Floats:
    """Layout: f16 scale of scales, f16 scale of minima, 8 pairs of 6-bit (scale, minimum), 8 runs of 32 nibbles."""
    scales, minima = _scales_and_minima(groups)
    quants = _nibbles_of_64(groups[:, 16:]).astype(np.float32)
    return (scales[:, :, None] * quants - minima[:, :, None]).reshape(-1, 256)


def _q5_k(groups: Bytes) -> Floats:
    """Layout: as Q4_K, with a fifth bit. Bit r of byte i belongs to element i of run r."""
    scales, minima = _scales_and_minima(groups)
    run = np.arange(8, dtype=np.uint8)[None, :, None]
    high = (groups[:, None, 16:48] >> run) & np.uint8(1)
    quants = (_nibbles_of_64(groups[:, 48:]) | (high << np.uint8(4))).astype(np.float32)
    return (scales[:, :, None] * quants - minima[:, :, None]).reshape(-1, 256)


def _q6_k(groups: Bytes) -> Floats:
    """Layout: lower nibbles (128 bytes), upper bit pairs (64 bytes), 16 int8 scales, f16 scale; numbers are minus 32.

    In each half of 128 elements, runs 0 and 1 are the low nibbles of its 64 bytes and runs 2 and 3 the high ones; run r
    takes bits 2r and 2r + 1 of the half's 32 bytes of bit pairs.
    """
    num_groups = groups.shape[0]
    low_bytes = groups[:, :128].reshape(num_groups, 2, 2, 32)
    low = np.concatenate([low_bytes & np.uint8(0x0F), low_bytes >> np.uint8(4)], axis=2)
    shift = np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None]
    high = (groups[:, 128:192].reshape(num_groups, 2, 1, 32) >> shift) & np.uint8(3)
    quants = ((low | (high << np.uint8(4))).astype(np.float32) - np.float32(32)).reshape(num_groups, 16, 16)
    scales = _half(groups, 208) * groups[:, 192:208].view(np.int8).astype(np.float32)
    values: Floats = (scales[:, :, None] * quants).reshape(num_groups, 256)
    return values


def _q3_k(groups: Bytes) -> Floats:
    """Layout: third bits (32 bytes), lower bit pairs (64 bytes), 16 6-bit scales, f16 scale.

    Scales are minus 32 and numbers minus 4. Bit r of byte i of the third bits belongs to element i of run r. The pairs
    are those of Q6_K. Bytes 0-7 of the scales hold the lower nibbles of scales 0-7 (low) and 8-15 (high), and bytes
    8-11 the upper pairs, four scales apart.
    """
    num_groups = groups.shape[0]
    run = np.arange(8, dtype=np.uint8)[None, :, None]
    third = (groups[:, None, :32] >> run) & np.uint8(1)
    shift = np.arange(0, 8, 2, dtype=np.uint8)[None, None, :, None]
    pairs = ((groups[:, 32:96].reshape(num_groups, 2, 1, 32) >> shift) & np.uint8(3)).reshape(num_groups, 8, 32)
    quants = ((pairs | (third << np.uint8(2))).astype(np.float32) - np.float32(4)).reshape(num_groups, 16, 16)
    upper = (groups[:, None, 104:108] >> shift[0]) & np.uint8(3)
    numbers = _nibbles(groups[:, 96:104]) | (upper.reshape(num_groups, 16) << np.uint8(4))
    scales = _half(groups, 108) * (numbers.astype(np.float32) - np.float32(32))
    values: Floats = (scales[:, :, None] * quants).reshape(num_groups, 256)
    return values


def _iq4_nl(groups: Bytes) -> Floats:
    """Layout: f16 scale, 32 nibbles, which are indices of levels."""
    return _half(groups, 0) * IQ4_LEVELS[_nibbles(groups[:, 2:])]


def _iq4_xs(groups: Bytes) -> Floats:
    """Layout: f16 scale, upper pairs of 8 6-bit scales, their lower nibbles, 8 runs of 32 nibbles as in IQ4_NL.

    Scales are minus 32.
    """
    num_groups = groups.shape[0]
    shifted = np.ascontiguousarray(groups[:, 2:4]).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    upper = (shifted & np.uint16(3)).astype(np.uint8) << np.uint8(4)
    low = np.stack([groups[:, 4:8] & np.uint8(15), groups[:, 4:8] >> np.uint8(4)], axis=2).reshape(num_groups, 8)
    numbers = (low | upper).astype(np.float32)
    levels = IQ4_LEVELS[_nibbles(groups[:, 8:].reshape(-1, 16))].reshape(num_groups, 8, 32)
    scales = _half(groups, 0) * (numbers - np.float32(32))
    values: Floats = (scales[:, :, None] * levels).reshape(num_groups, 256)
    return values


def _mxfp4(groups: Bytes) -> Floats:
    """Layout: an exponent, 32 numbers of 4 bits (E2M1). OCP Microscaling Formats, version 1.0."""
    exponents = groups[:, :1].astype(np.int32) - 128
    values: Floats = np.ldexp(TWICE_E2M1[_nibbles(groups[:, 1:])], exponents)
    return values


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The numbers of blocks [N, ...]: an element is `scale * quant + minimum`.

    quants: i8 [N, elements of a block]; scales: f32 [N, groups of a block]; minima: likewise, or None.
    """

    quants: NDArray[np.int8]
    scales: Floats
    minima: Floats | None


def unpacked(format_name: str, groups: Bytes) -> Unpacked:
    """Reads blocks of an integer format with the code of the kernels, which has the grids of the IQ formats."""
    from trunkline_server import _kernels

    num_groups = groups.shape[0]
    quants, scales, minima = _kernels.unpack_groups(format_name, np.ascontiguousarray(groups))
    return Unpacked(
        np.frombuffer(quants, np.int8).reshape(num_groups, -1),
        np.frombuffer(scales, np.float32).reshape(num_groups, -1),
        np.frombuffer(minima, np.float32).reshape(num_groups, -1) if minima else None,
    )


def _by_kernels(groups: Bytes, *, format_name: str) -> Floats:
    numbers = unpacked(format_name, groups)
    quants = numbers.quants.reshape(*numbers.scales.shape, -1).astype(np.float32)
    values = numbers.scales[:, :, None] * quants
    if numbers.minima is not None:
        values += numbers.minima[:, :, None]
    return values.reshape(groups.shape[0], -1)


def _affine4(groups: Bytes) -> Floats:
    """Layout: f32 scale, f32 minimum, 32 nibbles."""
    return _float(groups, 0) * _nibbles(groups[:, 8:]).astype(np.float32) + _float(groups, 4)


def _affine8(groups: Bytes) -> Floats:
    """Layout: f32 scale, f32 minimum, 32 int8."""
    return _float(groups, 0) * groups[:, 8:].view(np.int8).astype(np.float32) + _float(groups, 4)


def _float(groups: Bytes, offset: int) -> Floats:
    """Returns the f32 at a byte offset of each group as [groups, 1]."""
    return np.ascontiguousarray(groups[:, offset : offset + 4]).view(np.float32)


def _half(groups: Bytes, offset: int) -> Floats:
    """Returns the f16 at a byte offset of each group as [groups, 1]."""
    return np.ascontiguousarray(groups[:, offset : offset + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Unpacks low nibbles first: element i is in the low half of byte i, element i + 16 in its high half."""
    return np.concatenate([packed & np.uint8(0x0F), packed >> np.uint8(4)], axis=1)


def _five_bits(fifth_bits: Bytes, packed: Bytes) -> Bytes:
    """Returns [groups, 32]: bit i of the fifth bits, counted from the lowest, becomes bit 4 of element i."""
    return _nibbles(packed) | (np.unpackbits(fifth_bits, axis=1, bitorder="little") << np.uint8(4))


def _nibbles_of_64(packed: Bytes) -> Bytes:
    """Returns [groups, 8, 32]: each 32 bytes hold two runs, one in the low and one in the high nibbles."""
    runs = packed.reshape(-1, 4, 1, 32)
    return np.concatenate([runs & np.uint8(0x0F), runs >> np.uint8(4)], axis=2).reshape(-1, 8, 32)


def _scales_and_minima(groups: Bytes) -> tuple[Floats, Floats]:
    """Decodes the scales and minima of the K formats, [groups, 8] each, from 12 bytes of six-bit numbers.

    Bytes 0-3 and 4-7 are scales and minima 0-3, whose top two bits belong to numbers 4-7; bytes 8-11 are the lower
    nibbles of scales (low) and minima (high) 4-7.
    """
    first, second, third = groups[:, 4:8], groups[:, 8:12], groups[:, 12:16]
    mask, top = np.uint8(0x3F), np.uint8(0x30)
    scales = np.concatenate([first & mask, (third & np.uint8(0x0F)) | ((first >> np.uint8(2)) & top)], axis=1)
    minima = np.concatenate([second & mask, (third >> np.uint8(4)) | ((second >> np.uint8(2)) & top)], axis=1)
    return _half(groups, 0) * scales.astype(np.float32), _half(groups, 2) * minima.astype(np.float32)


_DECODERS: dict[str, Callable[[Bytes], Floats]] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "Q3_K": _q3_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
    "AFFINE4": _affine4,
    "AFFINE8": _affine8,
    **{name: partial(_by_kernels, format_name=name) for name in UNPACKED_FORMATS},
}
