"""Raw weights as f32, in numpy. The reference backend computes with them, and the kernels are compared to them.

Layouts: `ggml-common.h` of ggml; the arithmetic follows `ggml-quants.c` (`dequantize_row_*`). The functions that read
integers take arrays of numpy or of torch, so that a device reads them too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trunkline_server.weights.tensor import ALL_FORMATS, Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Floats = NDArray[np.float32]

# An array of numpy or a tensor of torch.
Array = Any

# Number of elements decoded at a time, which bounds the temporaries (about 20 bytes per element).
_CHUNK_ELEMENTS = 1 << 20


# The levels of IQ4_NL and IQ4_XS, `kvalues_iq4nl` of ggml.
IQ4_LEVELS = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.int8)
TWICE_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], dtype=np.int8)


# Formats that the kernels unpack, because they need tables or few people have them.
UNPACKED_FORMATS = ("Q2_K", "TQ1_0", "TQ2_0", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M")


def dequantize(tensor: Tensor) -> Floats:
    """Returns the tensor in its shape and with its rows in the model's order, as a new f32 array.

    Exact: each format's values are f32 numbers up to one rounding.
    """
    stored_as = ALL_FORMATS[tensor.format]
    groups = np.frombuffer(tensor.data, dtype=np.uint8).reshape(-1, stored_as.group_bytes)
    result = np.empty((groups.shape[0], stored_as.group_elements), dtype=np.float32)
    step = _CHUNK_ELEMENTS // stored_as.group_elements
    for begin in range(0, groups.shape[0], step):
        # Copied so that the views below are aligned, wherever the tensor lies in its file.
        result[begin : begin + step] = _values(tensor.format, groups[begin : begin + step].copy())
    values: Floats = result.reshape(tensor.shape)
    order_heads(values, tensor)
    return values


def order_heads(rows: Array, tensor: Tensor) -> None:
    """Puts the rows of a tensor, read contiguously and in the file's order, into the model's order."""
    if tensor.interleaved_heads is None:
        return
    # The rotated rows of each head are stored in the order 0, h, 1, h + 1, ...; see places.py.
    head_size, rotary_size = tensor.interleaved_heads
    rotated = rows.reshape(-1, head_size, *rows.shape[1:])[:, :rotary_size]
    pairs = rotated.reshape(len(rotated), rotary_size // 2, 2, *rows.shape[1:])
    rotated[:] = pairs.swapaxes(1, 2).reshape(rotated.shape)


def _values(format_name: str, groups: Bytes) -> Floats:
    if format_name in _FLOATS:
        return _FLOATS[format_name](groups)
    numbers = unpacked(format_name, groups)
    quants = numbers.quants.reshape(*numbers.scales.shape, -1).astype(np.float32)
    values: Floats = numbers.scales[:, :, None] * quants
    if numbers.minima is not None:
        values += numbers.minima[:, :, None]
    return values.reshape(len(groups), -1)


def _f32(groups: Bytes) -> Floats:
    return groups.view(np.float32)


def _f16(groups: Bytes) -> Floats:
    return groups.view(np.float16).astype(np.float32)


def _bf16(groups: Bytes) -> Floats:
    """Elements are the upper halves of f32 numbers."""
    return (groups.view(np.uint16).astype(np.uint32) << np.uint32(16)).view(np.float32)


_FLOATS: dict[str, Callable[[Bytes], Floats]] = {"F32": _f32, "F16": _f16, "BF16": _bf16}


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The numbers of blocks [N, ...]: an element is `scale * quant + minimum`.

    quants: i8 or u8 [N, elements of a block]; scales: f32 [N, groups of a block]; minima: likewise, or None.
    """

    quants: Array
    scales: Array
    minima: Array | None = None


def unpacked(format_name: str, groups: Array) -> Unpacked:
    """Reads blocks of an integer format, [N, bytes of a block] u8, into arrays of the same library and device."""
    if format_name in UNPACKED_FORMATS:
        return _by_kernels(format_name, groups)
    return _READERS[format_name](groups)


def _by_kernels(format_name: str, groups: Array) -> Unpacked:
    """Reads blocks with the code of the kernels, which has the grids of the IQ formats."""
    from trunkline_server import _kernels

    parts = _kernels.unpack_groups(format_name, np.ascontiguousarray(_on_host(groups)))

    def array(part: bytes, dtype: type[np.generic]) -> Array:
        numbers = np.frombuffer(part, dtype).reshape(len(groups), -1)
        return numbers if isinstance(groups, np.ndarray) else _like(groups, numbers.copy())

    quants, scales, minima = parts
    return Unpacked(array(quants, np.int8), array(scales, np.float32), array(minima, np.float32) if minima else None)


def _q8_0(groups: Array) -> Unpacked:
    """Layout: f16 scale, 32 int8."""
    return Unpacked(_signed(groups[:, 2:]), _half(groups, 0))


def _q4_0(groups: Array) -> Unpacked:
    """Layout: f16 scale, 32 nibbles; numbers are nibbles minus 8."""
    return Unpacked(_signed(nibbles(groups[:, 2:]), 8), _half(groups, 0))


def _q4_1(groups: Array) -> Unpacked:
    """Layout: f16 scale, f16 minimum, 32 nibbles."""
    return Unpacked(nibbles(groups[:, 4:]), _half(groups, 0), _half(groups, 2))


def _q5_0(groups: Array) -> Unpacked:
    """Layout: f16 scale, 4 bytes of fifth bits, 32 nibbles; numbers are minus 16."""
    return Unpacked(_signed(_five_bits(groups[:, 2:6], groups[:, 6:]), 16), _half(groups, 0))


def _q5_1(groups: Array) -> Unpacked:
    """Layout: f16 scale, f16 minimum, 4 bytes of fifth bits, 32 nibbles."""
    return Unpacked(_five_bits(groups[:, 4:8], groups[:, 8:]), _half(groups, 0), _half(groups, 2))


def _q4_k(groups: Array) -> Unpacked:
    """Layout: f16 scale of scales, f16 scale of minima, 8 pairs of 6-bit (scale, minimum), 8 runs of 32 nibbles."""
    return Unpacked(_nibbles_of_64(groups[:, 16:]).reshape(-1, 256), *_scales_and_minima(groups))


def _q5_k(groups: Array) -> Unpacked:
    """Layout: as Q4_K, with a fifth bit. Bit r of byte i belongs to element i of run r."""
    high = _bits(groups[:, None, 16:48], 8, 1)
    return Unpacked((_nibbles_of_64(groups[:, 48:]) | (high << 4)).reshape(-1, 256), *_scales_and_minima(groups))


def _q6_k(groups: Array) -> Unpacked:
    """Layout: lower nibbles (128 bytes), upper bit pairs (64 bytes), 16 int8 scales, f16 scale; numbers are minus 32.

    In each half of 128 elements, runs 0 and 1 are the low nibbles of its 64 bytes and runs 2 and 3 the high ones; run r
    takes bits 2r and 2r + 1 of the half's 32 bytes of bit pairs.
    """
    low = nibbles(groups[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = _bits(groups[:, 128:192].reshape(-1, 2, 1, 32), 4, 2)
    quants = (low | (high << 4)).reshape(-1, 256)
    return Unpacked(_signed(quants, 32), _half(groups, 208) * _signed(groups[:, 192:208]))


def _q3_k(groups: Array) -> Unpacked:
    """Layout: third bits (32 bytes), lower bit pairs (64 bytes), 16 6-bit scales, f16 scale.

    Scales are minus 32 and numbers minus 4. Bit r of byte i of the third bits belongs to element i of run r. The pairs
    are those of Q6_K. Bytes 0-7 of the scales hold the lower nibbles of scales 0-7 (low) and 8-15 (high), and bytes
    8-11 the upper pairs, four scales apart.
    """
    third = _bits(groups[:, None, :32], 8, 1)
    pairs = _bits(groups[:, 32:96].reshape(-1, 2, 1, 32), 4, 2).reshape(-1, 8, 32)
    upper = _bits(groups[:, None, 104:108], 4, 2).reshape(-1, 16)
    scales = _half(groups, 108) * _signed(nibbles(groups[:, 96:104]) | (upper << 4), 32)
    return Unpacked(_signed((pairs | (third << 2)).reshape(-1, 256), 4), scales)


def _iq4_nl(groups: Array) -> Unpacked:
    """Layout: f16 scale, 32 nibbles, which are indices of levels."""
    return Unpacked(_looked_up(IQ4_LEVELS, nibbles(groups[:, 2:])), _half(groups, 0))


def _iq4_xs(groups: Array) -> Unpacked:
    """Layout: f16 scale, upper pairs of 8 6-bit scales, their lower nibbles, 8 runs of 32 nibbles as in IQ4_NL.

    Scales are minus 32. Each byte has the pairs, or the nibbles, of neighbouring scales, from the lowest bits.
    """
    upper = _bits(groups[:, 2:4, None], 4, 2, last=True).reshape(-1, 8)
    low = _bits(groups[:, 4:8, None], 2, 4, last=True).reshape(-1, 8)
    levels = _looked_up(IQ4_LEVELS, nibbles(groups[:, 8:].reshape(-1, 8, 16)))
    return Unpacked(levels.reshape(-1, 256), _half(groups, 0) * _signed(low | (upper << 4), 32))


def _mxfp4(groups: Array) -> Unpacked:
    """Layout: an exponent, 32 numbers of 4 bits (E2M1). OCP Microscaling Formats, version 1.0."""
    library = library_of(groups)
    exponents = cast(groups[:, :1], "int32") - 128
    scales = library.ldexp(library.ones_like(exponents, dtype=library.float32), exponents)
    return Unpacked(_looked_up(TWICE_E2M1, nibbles(groups[:, 1:])), scales)


def _affine4(groups: Array) -> Unpacked:
    """Layout: f32 scale, f32 minimum, 32 nibbles."""
    return Unpacked(nibbles(groups[:, 8:]), _float(groups, 0), _float(groups, 4))


def _affine8(groups: Array) -> Unpacked:
    """Layout: f32 scale, f32 minimum, 32 int8."""
    return Unpacked(_signed(groups[:, 8:]), _float(groups, 0), _float(groups, 4))


def library_of(array: Array) -> Any:
    """Returns the module numpy or torch. What the two share: `&`, `|`, `<<`, `>>`, slices, `reshape` and `view`."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def _on_host(array: Array) -> Bytes:
    host: Bytes = array if isinstance(array, np.ndarray) else array.cpu().numpy()
    return host


def _like(array: Array, numbers: NDArray[np.generic]) -> Array:
    """Returns numbers as an array of the same library, on the same device."""
    return library_of(array).asarray(numbers, device=array.device)


def cast(array: Array, dtype: str) -> Array:
    library = library_of(array)
    return array.astype(dtype) if library is np else array.to(getattr(library, dtype))


def _signed(numbers: Array, offset: int = 0) -> Array:
    """Returns u8 minus an offset as i8."""
    return (numbers - offset).view(library_of(numbers).int8)


def _float(groups: Array, offset: int) -> Array:
    """Returns the f32 at a byte offset of each group as [groups, 1]."""
    return _copied(groups[:, offset : offset + 4]).view(library_of(groups).float32)


def _half(groups: Array, offset: int) -> Array:
    """Returns the f16 at a byte offset of each group as [groups, 1]."""
    return cast(_copied(groups[:, offset : offset + 2]).view(library_of(groups).float16), "float32")


def _copied(array: Array) -> Array:
    """Returns a contiguous copy, which is aligned."""
    return library_of(array).concatenate([array])


def _looked_up(table: NDArray[np.int8], indices: Array) -> Array:
    return _like(indices, table)[cast(indices, "int64")]


def nibbles(packed: Array) -> Array:
    """Unpacks low nibbles first: [..., n] to [..., 2 n]."""
    return library_of(packed).concatenate([packed & 0x0F, packed >> 4], axis=-1)


def _bits(numbers: Array, count: int, width: int, *, last: bool = False) -> Array:
    """Splits bytes into `count` numbers of `width` bits, from the lowest, along the last or last but one dimension.

    That dimension is 1 in the bytes.
    """
    shifts = _like(numbers, width * np.arange(count, dtype=np.uint8))
    return (numbers >> (shifts if last else shifts[:, None])) & ((1 << width) - 1)


def _five_bits(fifth_bits: Array, packed: Array) -> Array:
    """Returns [groups, 32]: bit i of the fifth bits, counted from the lowest, becomes bit 4 of element i."""
    return nibbles(packed) | (_bits(fifth_bits[:, :, None], 8, 1, last=True).reshape(-1, 32) << 4)


def _nibbles_of_64(packed: Array) -> Array:
    """Returns [groups, 8, 32]: each 32 bytes hold two runs, one in the low and one in the high nibbles."""
    return nibbles(packed.reshape(-1, 4, 32)).reshape(-1, 8, 32)


def _scales_and_minima(groups: Array) -> tuple[Array, Array]:
    """Decodes the scales and negated minima of the K formats, [groups, 8] each, from 12 bytes of six-bit numbers.

    Bytes 0-3 and 4-7 are scales and minima 0-3, whose top two bits belong to numbers 4-7; bytes 8-11 are the lower
    nibbles of scales (low) and minima (high) 4-7.
    """
    first, second, third = groups[:, 4:8], groups[:, 8:12], groups[:, 12:16]
    join = library_of(groups).concatenate
    scales = join([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], axis=1)
    minima = join([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], axis=1)
    return _half(groups, 0) * scales, -(_half(groups, 2) * minima)


_READERS: dict[str, Callable[[Array], Unpacked]] = {
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
}
