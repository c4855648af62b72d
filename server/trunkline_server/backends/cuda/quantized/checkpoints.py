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
    pack_nibbles,
    pad_columns,
    pad_groups,
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
    slices: Mapping[str, tuple[int, int]],
    bias: torch.Tensor | None,
    multiplies_fp8: bool = True,
) -> DeviceWeight:
    """Makes a module's weight from its parts, which are on the device.

    name: of the weight, for messages; state: bitsandbytes' description. multiplies_fp8: True if the device has FP8
    products; without them, e4m3 weights are multiplied with unquantised activations. Raises UnsupportedFormat.
    """
    if isinstance(scheme, Gptq):
        weight = _gptq(scheme, name, parts)
    elif isinstance(scheme, Awq):
        weight = _awq(scheme, name, parts)
    elif isinstance(scheme, PackedIntegers):
        weight = _packed(scheme, name, parts)
    elif isinstance(scheme, EightBits):
        if scheme.activations != "none" and (multiplies_fp8 or not scheme.is_float):
            return _scaled(scheme, parts, dtype=dtype, slices=slices, bias=bias)
        weight = _bytes_with_scales(scheme, name, parts)
    else:
        weight = _four_bit_floats(name, parts, state)
    return weight.on_device(dtype=dtype, slices=slices, bias=bias)


class _Groups:
    """The common form of grouped schemes: quants [N, K], unsigned u8 of 4 bits or i8 of 8, and a scale per group."""

    def __init__(
        self,
        name: str,
        bits: int,
        quants: torch.Tensor,
        scales: torch.Tensor,
        group_size: int | None,
        *,
        zeros: torch.Tensor | None = None,
        zero_point: int = 0,
        table: torch.Tensor | None = None,
    ) -> None:
        """Checks the group size: None for one group. scales, zeros: [N, groups]; table: as in `GroupedWeight`."""
        self.num_outputs, self.num_inputs = quants.shape
        self._bits, self._quants, self._scales, self._zeros = bits, quants, scales, zeros
        self._zero_point, self._table = zero_point, table
        self._order: torch.Tensor | None = None
        # A single group, or one at least as long as a row, is as long as the padded row.
        size = padded(self.num_inputs) if group_size is None or group_size >= self.num_inputs else group_size
        if size not in SHORT_GROUPS and size % BLOCK_INPUTS != 0:
            raise UnsupportedFormat(
                f"weight {quoted(name)} is quantised in groups of {size} inputs, which is not supported",
                hint=f"supported are groups of 16, 32, 64 and multiples of {BLOCK_INPUTS}",
            )
        self._group_size = size

    def order_by(self, name: str, groups: torch.Tensor) -> None:
        """Sorts columns by group, so that groups are contiguous. groups: [K] i32, each column's group (`g_idx`)."""
        in_order = torch.arange(self.num_inputs, device=groups.device) // self._group_size
        if torch.equal(groups.long(), in_order):
            return
        order = torch.argsort(groups, stable=True)
        if not torch.equal(groups[order].long(), in_order):
            raise UnsupportedFormat(
                f"weight {quoted(name)} has groups whose size is not {self._group_size}, which is not supported",
                hint="use the unquantised model or a GGUF file",
            )
        self._quants = self._quants[:, order]
        self._order = order.to(torch.int32)

    def on_device(
        self, *, dtype: torch.dtype, slices: Mapping[str, tuple[int, int]], bias: torch.Tensor | None
    ) -> GroupedWeight:
        def pad(numbers: torch.Tensor) -> torch.Tensor:
            return pad_groups(numbers, self.num_inputs, self._group_size)

        four = self._bits == 4
        quants = pack_nibbles(self._quants) if four else pad_columns(self._quants, padded(self.num_inputs))
        return GroupedWeight(
            num_outputs=self.num_outputs, num_inputs=self.num_inputs, dtype=dtype, slices=slices, bias=bias,
            bits=self._bits, quants=quants, group_size=self._group_size, scales=pad(self._scales),
            zeros=None if self._zeros is None else pad(self._zeros.to(torch.float16)),
            zero_point=self._zero_point, table=self._table, order=self._order,
        )  # fmt: skip


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpacks i32 [..., n] to u8 [..., n, 32 / bits], from the lowest bits."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> shifts) & ((1 << bits) - 1)).to(torch.uint8)


def _quants(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """Converts unsigned numbers to the form of `GroupedWeight`, in which numbers of 8 bits are signed."""
    return numbers if bits == 4 else (numbers.to(torch.int16) - 128).to(torch.int8)


def _gptq(scheme: Gptq, name: str, parts: Parts) -> _Groups:
    by_word = _unpacked(parts["qweight"], scheme.bits)  # [words of K, N, in a word]
    numbers = by_word.transpose(1, 2).flatten(0, 1).T.contiguous()
    largest = (1 << scheme.bits) - 1
    zeros = _unpacked(parts["qzeros"], scheme.bits).flatten(1).to(torch.int32) + scheme.zero_offset & largest
    zeros = zeros.T - (0 if scheme.bits == 4 else 128)
    scales = parts["scales"].T
    groups = _Groups(name, scheme.bits, _quants(numbers, scheme.bits), scales, scheme.group_size, zeros=zeros)
    if "g_idx" in parts:
        groups.order_by(name, parts["g_idx"])
    return groups


def _awq(scheme: Awq, name: str, parts: Parts) -> _Groups:
    columns = torch.tensor(_AWQ_COLUMNS, device=parts["qweight"].device).argsort()
    numbers = _unpacked(parts["qweight"], 4)[..., columns].flatten(1).T.contiguous()
    zeros = _unpacked(parts["qzeros"], 4)[..., columns].flatten(1).T
    return _Groups(name, 4, numbers, parts["scales"].T, scheme.group_size, zeros=zeros)


def _packed(scheme: PackedIntegers, name: str, parts: Parts) -> _Groups:
    numbers = _unpacked(parts["weight_packed"], scheme.bits).flatten(1)
    # Signed integers, including zero points, are stored plus half the range; 8-bit numbers subtract it again.
    zero_point, zeros = 8 if scheme.bits == 4 else 0, None
    quants, scales = _quants(numbers, scheme.bits), parts["weight_scale"]
    if not scheme.is_symmetric:
        by_word = _unpacked(parts["weight_zero_point"], scheme.bits)  # [words of N, groups, in a word]
        zeros = by_word.transpose(1, 2).flatten(0, 1)[: quants.shape[0]].to(torch.int32)
        zeros = zeros - (0 if scheme.bits == 4 else 128)
    groups = _Groups(name, scheme.bits, quants, scales, scheme.group_size, zeros=zeros, zero_point=zero_point)
    if "weight_g_idx" in parts:
        groups.order_by(name, parts["weight_g_idx"])
    return groups


def _row_scales(scheme: EightBits, parts: Parts) -> torch.Tensor:
    """Returns the scale of each row, [N] f32."""
    num_outputs = parts["weight"].shape[0]
    scales = parts[scheme.scale_name].float().reshape(-1) / scheme.scale_divisor
    return scales.expand(num_outputs).contiguous()


def _bytes_with_scales(scheme: EightBits, name: str, parts: Parts) -> _Groups:
    quants = parts["weight"].view(torch.uint8) if scheme.is_float else parts["weight"]
    if scheme.block is not None:
        rows, columns = scheme.block
        scales = parts[scheme.scale_name].float()
        if len(scales) != len(quants):
            scales = scales.repeat_interleave(rows, 0)[: len(quants)]
        return _Groups(name, 8, quants, scales, columns)
    return _Groups(name, 8, quants, _row_scales(scheme, parts)[:, None], None)


def _four_bit_floats(name: str, parts: Parts, state: Mapping[str, object]) -> _Groups:
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
    return _Groups(name, 4, numbers, scales, block, table=parts["weight.quant_map"])


def _scaled(
    scheme: EightBits,
    parts: Parts,
    *,
    dtype: torch.dtype,
    slices: Mapping[str, tuple[int, int]],
    bias: torch.Tensor | None,
) -> ScaledWeight:
    values = parts["weight"]
    return ScaledWeight(
        num_outputs=values.shape[0], num_inputs=values.shape[1], dtype=dtype, slices=slices, bias=bias,
        values=values, scales=_row_scales(scheme, parts),
        input_scale=parts["input_scale"].float().reshape(1) if scheme.activations == "static" else None,
        input_limit=scheme.input_limit,
    )  # fmt: skip
