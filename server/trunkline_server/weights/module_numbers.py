"""Reads the numbers of quantised linear modules, whose tensors `quantized_parts.py` describes.

The functions take arrays of numpy or of torch, as those of `dequantize.py` do: integers and floats as they are stored,
or floats as f32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trunkline_server.errors import UnsupportedFormat, quoted
from trunkline_server.weights.dequantize import Array, cast, library_of
from trunkline_server.weights.quantization import Awq, EightBits, Gptq, PackedIntegers

# The column of eight to which each nibble of AWQ's words belongs, from the lowest.
AWQ_COLUMNS = np.argsort([0, 2, 4, 6, 1, 3, 5, 7])

Parts = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class GroupedIntegers:
    """GroupedIntegers in groups of inputs: an element is `scale * (number - zero)`.

    numbers: u8 [N, K], unsigned; scales: [N, groups]; zeros: i32 [N, groups], or that of all groups. group_size: None
    for one group; order: i32 [K], each input's group, None if they follow each other.
    """

    bits: int
    numbers: Array
    scales: Array
    zeros: Array | int
    group_size: int | None
    order: Array | None = None


def integers_of(scheme: Gptq | Awq | PackedIntegers | EightBits, parts: Parts) -> GroupedIntegers:
    """Returns the numbers of a module. parts: by suffix."""
    match scheme:
        case Gptq():
            numbers = _columns_of_words(parts["qweight"], scheme.bits).T
            stored = cast(_rows_of_words(parts["qzeros"], scheme.bits), "int32")
            zeros = (stored + scheme.zero_offset) & ((1 << scheme.bits) - 1)
            return GroupedIntegers(
                scheme.bits, numbers, parts["scales"].T, zeros.T, scheme.group_size, parts.get("g_idx")
            )
        case Awq():
            numbers, zeros = (_rows_of_words(parts[name], 4, AWQ_COLUMNS).T for name in ("qweight", "qzeros"))
            return GroupedIntegers(4, numbers, parts["scales"].T, cast(zeros, "int32"), scheme.group_size)
        case PackedIntegers():
            numbers, order = _rows_of_words(parts["weight_packed"], scheme.bits), parts.get("weight_g_idx")
            # Signed integers, including zero points, are stored plus half the range.
            zeros = 1 << (scheme.bits - 1)
            if not scheme.is_symmetric:
                zeros = cast(_columns_of_words(parts["weight_zero_point"], scheme.bits)[: len(numbers)], "int32")
            return GroupedIntegers(scheme.bits, numbers, parts["weight_scale"], zeros, scheme.group_size, order)
        case EightBits():
            weight = parts["weight"]
            scales, columns = scales_of_bytes(scheme, parts)
            # Flipping the top bit of two's complement adds 128.
            return GroupedIntegers(8, weight.view(library_of(weight).uint8) ^ 0x80, scales, 128, columns)


def scales_of_bytes(scheme: EightBits, parts: Parts) -> tuple[Array, int | None]:
    """Returns the scales of rows, f32 [N, groups], and the inputs of a group; None for one group."""
    num_rows, stored = len(parts["weight"]), cast(parts[scheme.scale_name], "float32")
    if scheme.block is not None:
        rows, columns = scheme.block
        is_by_row = len(stored) == num_rows
        return stored if is_by_row else repeated(stored, min(rows, num_rows), 0)[:num_rows], columns
    return library_of(stored).broadcast_to(stored.reshape(-1, 1) / scheme.scale_divisor, (num_rows, 1)), None


def four_bit_floats(name: str, parts: Parts, state: Mapping[str, object]) -> tuple[Array, Array, int]:
    """Returns codes u8 [N, K] of a table, the scales of their blocks f32 [N, blocks], and the inputs of a block.

    name: of the weight; state: bitsandbytes' description. Raises UnsupportedFormat.
    """
    shape, block = state["shape"], state["blocksize"]
    assert isinstance(shape, list) and isinstance(block, int), "checked when the file was opened"
    if shape[1] % block != 0:
        raise UnsupportedFormat(
            f"weight {quoted(name)} has rows of {shape[1]} elements in blocks of {block}, which is not supported",
            hint="use the unquantised model or a GGUF file",
        )
    # The upper nibble comes first.
    pairs = parts["weight"].reshape(-1, 1)
    codes = library_of(pairs).concatenate([pairs >> 4, pairs & 15], axis=1).reshape(shape)
    return codes, absmax_of(parts, state).reshape(shape[0], -1), block


def absmax_of(parts: Parts, state: Mapping[str, object]) -> Array:
    """Returns the scale of each block of bitsandbytes, f32."""
    absmax = parts["weight.absmax"]
    if "weight.nested_absmax" not in parts:
        return absmax
    nested_block, offset = state["nested_blocksize"], state.get("nested_offset", 0.0)
    assert isinstance(nested_block, int) and isinstance(offset, float | int), "checked when the file was opened"
    nested = repeated(parts["weight.nested_absmax"], min(nested_block, len(absmax)), 0)[: len(absmax)]
    return parts["weight.nested_quant_map"][cast(absmax, "int64")] * nested + float(offset)


def repeated(array: Array, times: int, axis: int) -> Array:
    """Repeats each element along an axis."""
    return array.repeat(times, axis) if isinstance(array, np.ndarray) else array.repeat_interleave(times, axis)


def unpacked_words(words: Array, bits: int) -> Array:
    """Unpacks i32 [..., n] to u8 [..., n, 32 / bits], from the lowest bits."""
    library = library_of(words)
    whole = words.view(library.uint8).reshape(*words.shape, 4, 1)
    if bits == 8:
        return whole[..., 0]
    return library.concatenate([whole & 15, whole >> 4], axis=-1).reshape(*words.shape, 8)


def _rows_of_words(words: Array, bits: int, columns: object = slice(None)) -> Array:
    """Returns the numbers of words that lie along rows, [rows, numbers]. columns: the places of those of a word."""
    return unpacked_words(words, bits)[..., columns].reshape(len(words), -1)


def _columns_of_words(words: Array, bits: int) -> Array:
    """Returns the numbers of words that lie along columns, [numbers, columns]."""
    return unpacked_words(words, bits).swapaxes(1, 2).reshape(-1, words.shape[1])
