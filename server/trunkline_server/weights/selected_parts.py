"""Selects rows of a quantised module, for weights that their file joins or whose rows it stores in another order."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server.errors import UnsupportedFormat, quoted
from trunkline_server.weights.affine import array_of
from trunkline_server.weights.module_numbers import AWQ_COLUMNS, absmax_of, unpacked_words
from trunkline_server.weights.quantization import Awq, EightBits, FourBitFloats, Gptq, PackedIntegers, Quantization
from trunkline_server.weights.quantized_parts import BITSANDBYTES_STATES, Part, quantization_state

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]

_ITEM_BYTES = {"I32": 4, "F32": 4, "F16": 2, "BF16": 2, "U8": 1, "I8": 1, "F8_E4M3": 1}
_IN_ORDER = np.arange(8)


def selected(scheme: Quantization, name: str, parts: Mapping[str, Part], rows: Rows, num_rows: int) -> dict[str, Part]:
    """Returns the parts that encode rows of a weight, in this order.

    name: of the weight, for messages; num_rows: of the whole weight. Copies what it selects. Raises UnsupportedFormat.
    """
    match scheme:
        case Gptq():
            changed = {
                "qweight": _taken(parts["qweight"], rows, axis=1),
                "qzeros": _taken_words(parts["qzeros"], rows, scheme.bits, axis=1),
                "scales": _taken(parts["scales"], rows, axis=1),
            }
        case Awq():
            changed = {
                "qweight": _taken_words(parts["qweight"], rows, 4, axis=1, columns=AWQ_COLUMNS),
                "qzeros": _taken_words(parts["qzeros"], rows, 4, axis=1, columns=AWQ_COLUMNS),
                "scales": _taken(parts["scales"], rows, axis=1),
            }
        case PackedIntegers():
            changed = {suffix: _taken(parts[suffix], rows, axis=0) for suffix in ("weight_packed", "weight_scale")}
            if not scheme.is_symmetric:
                changed["weight_zero_point"] = _taken_words(parts["weight_zero_point"], rows, scheme.bits, axis=0)
        case EightBits():
            changed = {"weight": _taken(parts["weight"], rows, axis=0)}
            scale = parts[scheme.scale_name]
            if scheme.block is not None:
                changed[scheme.scale_name] = _taken(scale, _blocks(rows, scheme.block[0]), axis=0)
            elif scale.shape and scale.shape[0] == num_rows:
                changed[scheme.scale_name] = _taken(scale, rows, axis=0)
        case FourBitFloats():
            return _four_bit_floats(name, parts, rows)
    return {**parts, **changed}


def _blocks(rows: Rows, size: int) -> Rows:
    """Returns the block of each `size` rows, or that of each row if these are from several blocks."""
    by_row = rows // size
    by_block = by_row[::size]
    return by_block if np.array_equal(by_block.repeat(size)[: len(rows)], by_row) else by_row


def _four_bit_floats(name: str, parts: Mapping[str, Part], rows: Rows) -> dict[str, Part]:
    """Also replaces nested scales by what they encode, because their blocks do not end with rows."""
    state = quantization_state(parts)
    shape, block = state["shape"], state["blocksize"]
    assert isinstance(shape, list) and isinstance(block, int), "checked when the file was opened"
    if shape[1] % block != 0 or block % 2 != 0:
        raise UnsupportedFormat(
            f"weight {quoted(name)} has rows of {shape[1]} elements in blocks of {block}, which is not supported",
            hint="use the unquantised model or a GGUF file",
        )
    pairs = np.frombuffer(parts["weight"].data, np.uint8).reshape(shape[0], -1)[rows]
    peaks = absmax_of({name: array_of(part) for name, part in parts.items()}, state).reshape(shape[0], -1)[rows]
    described = json.dumps({**state, "shape": [len(rows), shape[1]]}).encode()
    suffix = next(suffix for suffix in BITSANDBYTES_STATES if suffix in parts)
    return {
        "weight": _part(parts["weight"], pairs.reshape(-1, 1)),
        "weight.absmax": replace(_part(parts["weight.absmax"], peaks.reshape(-1)), dtype="F32"),
        "weight.quant_map": parts["weight.quant_map"],
        suffix: _part(parts[suffix], np.frombuffer(described, np.uint8)),
    }


def _taken(part: Part, rows: Rows, axis: int) -> Part:
    items = np.frombuffer(part.data, np.uint8).reshape(*part.shape, _ITEM_BYTES[part.dtype])
    taken = items.take(rows, axis)
    return _part(part, taken, taken.shape[:-1])


def _taken_words(part: Part, rows: Rows, bits: int, axis: int, columns: NDArray[np.int64] = _IN_ORDER) -> Part:
    """Selects numbers that are packed into words along `axis`. columns: the place in a word of each of its numbers."""
    in_word = 32 // bits
    columns = columns[:in_word]
    numbers = np.moveaxis(unpacked_words(array_of(part), bits)[..., columns], axis, -2)
    numbers = numbers.reshape(*numbers.shape[:-2], -1)[..., rows]
    numbers = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -len(rows) % in_word)])
    numbers = numbers.reshape(*numbers.shape[:-1], -1, in_word)[..., columns.argsort()].astype(np.uint32)
    words = np.bitwise_or.reduce(numbers << (bits * np.arange(in_word, dtype=np.uint32)), axis=-1)
    return _part(part, np.ascontiguousarray(np.moveaxis(words, -1, axis)).astype("<u4"))


def _part(part: Part, values: NDArray[np.generic], shape: tuple[int, ...] | None = None) -> Part:
    data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    data.flags.writeable = False
    return replace(part, shape=values.shape if shape is None else shape, data=data)
