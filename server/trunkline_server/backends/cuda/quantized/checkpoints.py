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
from trunkline_server.weights.module_numbers import four_bit_floats, integers_of, scales_of_bytes
from trunkline_server.weights.quantization import EightBits, FourBitFloats, Mxfp4, Quantization

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
    assert not isinstance(scheme, Mxfp4), "its parts are a tensor in GGUF's format"
    if isinstance(scheme, FourBitFloats):
        codes, scales, block = four_bit_floats(name, parts, state)
        return _grouped(name, 4, codes, scales, block, dtype, table=parts["weight.quant_map"])
    if isinstance(scheme, EightBits):
        if scheme.activations != "none" and (multiplies_fp8 or not scheme.is_float):
            return _scaled(scheme, parts, dtype)
        if scheme.is_float:
            scales, columns = scales_of_bytes(scheme, parts)
            return _grouped(name, 8, parts["weight"].view(torch.uint8), scales, columns, dtype)
    stored = integers_of(scheme, parts)
    # Numbers of 8 bits are signed.
    quants = stored.numbers if stored.bits == 4 else (stored.numbers ^ 0x80).view(torch.int8)
    zeros = stored.zeros - (0 if stored.bits == 4 else 128)
    return _grouped(
        name, stored.bits, quants, stored.scales, stored.group_size, dtype, groups=stored.order,
        zeros=None if isinstance(zeros, int) else zeros, zero_point=zeros if isinstance(zeros, int) else 0,
    )  # fmt: skip


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


def _scaled(scheme: EightBits, parts: Parts, dtype: torch.dtype) -> ScaledWeight:
    values = parts["weight"]
    return ScaledWeight(
        num_outputs=values.shape[0], num_inputs=values.shape[1], dtype=dtype, values=values,
        scales=scales_of_bytes(scheme, parts)[0].reshape(-1).contiguous(), input_limit=scheme.input_limit,
        input_scale=parts["input_scale"].float().reshape(1) if scheme.activations == "static" else None,
    )  # fmt: skip
