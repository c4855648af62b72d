"""Converts quantised modules of safetensors checkpoints to the kinds that the kernels multiply with.

`weights/quantized_parts.py` describes the files' tensors. Everything here runs on the device, once, at load.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from trunkline_server.backends.cuda.quantized.grouped import (
    BLOCK_INPUTS,
    SHORT_GROUPS,
    GroupedWeight,
    grouped,
    padded,
)
from trunkline_server.backends.cuda.quantized.scaled import ScaledWeight
from trunkline_server.backends.cuda.weights import DeviceWeight
from trunkline_server.errors import UnsupportedFormat, quoted
from trunkline_server.weights.quantization import Awq, EightBits, Gptq, PackedIntegers, Quantization

# The column of eight to which each nibble of AWQ's words belongs, from the lowest.
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)

Parts = Mapping[str, torch.Tensor]


def quantized_weight(
    scheme: Quantization,
    name: str,
    parts: Parts,
    state: Mapping[str, object],
    *,
    dtype: torch.dtype,
    multiplies_fp8: bool = True,
) -> DeviceWeight:
    """Makes a module's weight from its parts, which are on the device.

    name: of the weight, for messages; state: bitsandbytes' description. dtype: of activations. multiplies_fp8: True if
    the device has FP8 products; without them, e4m3 weights are multiplied with unquantised activations. Raises
    UnsupportedFormat.
    """
    if isinstance(scheme, Gptq):
        return _gptq(scheme, name, parts, dtype)
    if isinstance(scheme, Awq):
        return _awq(scheme, name, parts, dtype)
    if isinstance(scheme, PackedIntegers):
        return _packed(scheme, name, parts, dtype)
    if isinstance(scheme, EightBits):
        if scheme.activations != "none" and (multiplies_fp8 or not scheme.is_float):
            return _scaled(scheme, parts, dtype)
        return _bytes_with_scales(scheme, name, parts, dtype)
    return _four_bit_floats(name, parts, state, dtype)


def _grouped(
    name: str,
    bits: int,
    quants: torch.Tensor,
    scales: torch.Tensor,
    group_size: int | None,
    dtype: torch.dtype,
    *,
    zeros: torch.Tensor | None = None,
    zero_point: int = 0,
    table: torch.Tensor | None = None,
    groups: torch.Tensor | None = None,
) -> GroupedWeight:
    """Makes a weight of unsigned numbers of 4 bits or signed ones of 8. Raises UnsupportedFormat.

    quants: [N, K] u8 or i8; group_size: None for one group; scales, zeros: [N, groups]; groups: [K] i32, each column's
    group (`g_idx`). table: as in `GroupedWeight`.
    """
    num_inputs = quants.shape[1]
    # A single group, or one at least as long as a row, is as long as the padded row.
    size = padded(num_inputs) if group_size is None or group_size >= num_inputs else group_size
    if size not in SHORT_GROUPS and size % BLOCK_INPUTS != 0:
        raise UnsupportedFormat(
            f"weight {quoted(name)} is quantised in groups of {size} inputs, which is not supported",
            hint=f"supported are groups of 16, 32, 64 and multiples of {BLOCK_INPUTS}",
        )
    order = None if groups is None else _order(name, groups, size)
    return grouped(
        quants if order is None else quants[:, order], scales, size, bits=bits, dtype=dtype,
        zeros=None if zeros is None else zeros.to(torch.float16), zero_point=zero_point, table=table,
        order=None if order is None else order.to(torch.int32),
    )  # fmt: skip


def _order(name: str, groups: torch.Tensor, group_size: int) -> torch.Tensor | None:
    """Returns the order of columns in which groups are contiguous; None if they are."""
    in_order = torch.arange(len(groups), device=groups.device) // group_size
    if torch.equal(groups.long(), in_order):
        return None
    order = torch.argsort(groups, stable=True)
    if not torch.equal(groups[order].long(), in_order):
        raise UnsupportedFormat(
            f"weight {quoted(name)} has groups whose size is not {group_size}, which is not supported",
            hint="use the unquantised model or a GGUF file",
        )
    return order


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpacks i32 [..., n] to u8 [..., n, 32 / bits], from the lowest bits."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).to(torch.uint8)


def _quants(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Converts unsigned numbers to the form of `GroupedWeight`, in which numbers of 8 bits are signed."""
    return numbers if bits == 4 else (numbers.to(torch.int16) - 128).to(torch.int8)


def _gptq(scheme: Gptq, name: str, parts: Parts, dtype: torch.dtype) -> GroupedWeight:
    by_word = _unpacked(parts["qweight"], scheme.bits)  # [words of K, N, in a word]
    numbers = by_word.transpose(1, 2).flatten(0, 1).T.contiguous()
    largest = (1 << scheme.bits) - 1
    zeros = _unpacked(parts["qzeros"], scheme.bits).flatten(1).to(torch.int32) + scheme.zero_offset & largest
    zeros = zeros.T - (0 if scheme.bits == 4 else 128)
    scales = parts["scales"].T
    return _grouped(
        name, scheme.bits, _quants(numbers, scheme.bits), scales, scheme.group_size, dtype, zeros=zeros,
        groups=parts.get("g_idx"),
    )  # fmt: skip


def _awq(scheme: Awq, name: str, parts: Parts, dtype: torch.dtype) -> GroupedWeight:
    columns = torch.tensor(_AWQ_COLUMNS, device=parts["qweight"].device).argsort()
    numbers = _unpacked(parts["qweight"], 4)[..., columns].flatten(1).T.contiguous()
    zeros = _unpacked(parts["qzeros"], 4)[..., columns].flatten(1).T
    return _grouped(name, 4, numbers, parts["scales"].T, scheme.group_size, dtype, zeros=zeros)


def _packed(scheme: PackedIntegers, name: str, parts: Parts, dtype: torch.dtype) -> GroupedWeight:
    numbers = _unpacked(parts["weight_packed"], scheme.bits).flatten(1)
    # Signed integers, including zero points, are stored plus half the range; 8-bit numbers subtract it again.
    zero_point, zeros = 8 if scheme.bits == 4 else 0, None
    quants, scales = _quants(numbers, scheme.bits), parts["weight_scale"]
    if not scheme.is_symmetric:
        by_word = _unpacked(parts["weight_zero_point"], scheme.bits)  # [words of N, groups, in a word]
        zeros = by_word.transpose(1, 2).flatten(0, 1)[: quants.shape[0]].to(torch.int32)
        zeros = zeros - (0 if scheme.bits == 4 else 128)
    return _grouped(
        name, scheme.bits, quants, scales, scheme.group_size, dtype, zeros=zeros, zero_point=zero_point,
        groups=parts.get("weight_g_idx"),
    )  # fmt: skip


def _row_scales(scheme: EightBits, parts: Parts) -> torch.Tensor:
    """Returns the scale of each row, [N] f32."""
    num_outputs = parts["weight"].shape[0]
    scales = parts[scheme.scale_name].float().reshape(-1) / scheme.scale_divisor
    return scales.expand(num_outputs).contiguous()


def _bytes_with_scales(scheme: EightBits, name: str, parts: Parts, dtype: torch.dtype) -> GroupedWeight:
    quants = parts["weight"].view(torch.uint8) if scheme.is_float else parts["weight"]
    if scheme.block is not None:
        rows, columns = scheme.block
        scales = parts[scheme.scale_name].float()
        if len(scales) != len(quants):
            scales = scales.repeat_interleave(rows, 0)[: len(quants)]
        return _grouped(name, 8, quants, scales, columns, dtype)
    return _grouped(name, 8, quants, _row_scales(scheme, parts)[:, None], None, dtype)


def _four_bit_floats(name: str, parts: Parts, state: Mapping[str, object], dtype: torch.dtype) -> GroupedWeight:
    shape, block = state["shape"], state["blocksize"]
    assert isinstance(shape, list) and isinstance(block, int), "checked when the file was opened"
    num_outputs, num_inputs = shape
    if num_inputs % block != 0:
        raise UnsupportedFormat(
            f"weight {quoted(name)} has rows of {num_inputs} elements in blocks of {block}, which is not supported",
            hint="use the unquantised model or a GGUF file",
        )
    peaks = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        nested_block, offset = state["nested_blocksize"], state.get("nested_offset", 0.0)
        assert isinstance(nested_block, int) and isinstance(offset, float | int), "checked when the file was opened"
        nested = parts["weight.nested_absmax"].repeat_interleave(nested_block)[: peaks.shape[0]]
        peaks = parts["weight.nested_quant_map"][peaks.long()] * nested + offset
    # The upper nibble comes first.
    pairs = parts["weight"].reshape(-1)
    numbers = torch.stack([pairs >> 4, pairs & 15], dim=1).view(num_outputs, num_inputs)
    scales = peaks.view(num_outputs, -1)
    return _grouped(name, 4, numbers, scales, block, dtype, table=parts["weight.quant_map"])


def _scaled(scheme: EightBits, parts: Parts, dtype: torch.dtype) -> ScaledWeight:
    values = parts["weight"]
    return ScaledWeight(
        num_outputs=values.shape[0], num_inputs=values.shape[1], dtype=dtype, values=values,
        scales=_row_scales(scheme, parts), input_limit=scheme.input_limit,
        input_scale=parts["input_scale"].float().reshape(1) if scheme.activations == "static" else None,
    )  # fmt: skip
