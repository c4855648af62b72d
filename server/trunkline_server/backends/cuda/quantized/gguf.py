"""Repacks GGUF's quantised groups for the device. Layouts: `ggml-common.h` of ggml; see also `weights/dequantize.py`.

Formats of three, five and six bits become eight, and so do levels of tables, except MXFP4's. The K formats' products of
scales (f16 times 6 bits) are rounded to f16, an error of a quarter of bf16's rounding of the element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from trunkline_server.backends.cuda.quantized.grouped import (
    GroupedWeight,
    pack_nibbles,
    pad_columns,
    pad_groups,
    padded,
)
from trunkline_server.weights.dequantize import IQ4_LEVELS, TWICE_E2M1, UNPACKED_FORMATS, unpacked
from trunkline_server.weights.tensor import FORMATS

# Bytes decoded at a time. Temporaries take up to ten times as much.
_CHUNK_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Groups:
    """Decoded groups of rows: quants [N, K] u8 or i8, scales and minima [N, K / group_size]."""

    quants: torch.Tensor
    scales: torch.Tensor
    minima: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class _Format:
    """table: levels that 4-bit numbers stand for; scale_dtype: of scales and minima on the device."""

    bits: int
    group_size: int
    zero_point: int
    decode: Callable[[torch.Tensor], _Groups]
    table: NDArray[np.float32] | None = None
    scale_dtype: torch.dtype = torch.float16


def grouped_weight(
    format_name: str,
    parts: Sequence[torch.Tensor],
    *,
    num_inputs: int,
    dtype: torch.dtype,
    slices: Mapping[str, tuple[int, int]],
    bias: torch.Tensor | None,
) -> GroupedWeight:
    """Repacks rows of one format. parts: the rows of each slice as stored, [rows, bytes] u8, on the device."""
    stored_as, group_bytes = GROUPED_FORMATS[format_name], FORMATS[format_name].group_bytes
    pieces = []
    for part in parts:
        step = max(1, _CHUNK_BYTES // part.shape[1])
        for begin in range(0, part.shape[0], step):
            rows = part[begin : begin + step]
            groups = stored_as.decode(rows.reshape(rows.shape[0], -1, group_bytes))
            pieces.append(_packed(stored_as, groups, num_inputs))
    quants, scales = torch.cat([piece.quants for piece in pieces]), torch.cat([piece.scales for piece in pieces])
    minima = [piece.minima for piece in pieces if piece.minima is not None]
    return GroupedWeight(
        num_outputs=quants.shape[0], num_inputs=num_inputs, dtype=dtype, slices=slices, bias=bias,
        bits=stored_as.bits, group_size=stored_as.group_size, zero_point=stored_as.zero_point,
        quants=quants, scales=scales, minima=torch.cat(minima) if minima else None,
        table=None if stored_as.table is None else torch.from_numpy(stored_as.table).to(quants.device),
    )  # fmt: skip


def dense_rows(format_name: str, rows: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Dequantises rows as stored, [N, bytes] u8 on the device, to [N, K]."""
    stored_as, group_bytes = GROUPED_FORMATS[format_name], FORMATS[format_name].group_bytes
    groups = stored_as.decode(rows.reshape(rows.shape[0], -1, group_bytes))
    numbers = groups.quants.float()
    if stored_as.table is not None:
        numbers = torch.from_numpy(stored_as.table).to(rows.device)[groups.quants.long()]
    numbers = numbers.view(*groups.scales.shape, stored_as.group_size) - stored_as.zero_point
    values = numbers * groups.scales.float()[:, :, None]
    if groups.minima is not None:
        values += groups.minima.float()[:, :, None]
    return values.flatten(1).to(dtype)


def _packed(stored_as: _Format, groups: _Groups, num_inputs: int) -> _Groups:
    def pad(numbers: torch.Tensor) -> torch.Tensor:
        return pad_groups(numbers.to(stored_as.scale_dtype), num_inputs, stored_as.group_size)

    quants = pack_nibbles(groups.quants) if stored_as.bits == 4 else pad_columns(groups.quants, padded(num_inputs))
    return _Groups(quants, pad(groups.scales), None if groups.minima is None else pad(groups.minima))


def _half(groups: torch.Tensor, offset: int) -> torch.Tensor:
    """Returns the f16 at a byte offset of each group, [N, groups]."""
    return groups[:, :, offset : offset + 2].contiguous().view(torch.float16)[:, :, 0]


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Unpacks bytes [N, groups, n] to [N, groups, 2 n]: low nibbles first, then high ones."""
    return torch.cat([packed & 0x0F, packed >> 4], dim=-1)


def _five_bits(fifth_bits: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    """Puts bit i of the 4 bytes of fifth bits, counted from the lowest, above nibble i."""
    shifts = torch.arange(8, dtype=torch.uint8, device=packed.device)
    high = ((fifth_bits[..., None] >> shifts) & 1).flatten(-2)
    return _nibbles(packed) | (high << 4)


def _q8_0(groups: torch.Tensor) -> _Groups:
    return _Groups(groups[:, :, 2:].contiguous().view(torch.int8).flatten(1), _half(groups, 0))


def _q4_0(groups: torch.Tensor) -> _Groups:
    return _Groups(_nibbles(groups[:, :, 2:]).flatten(1), _half(groups, 0))


def _q4_1(groups: torch.Tensor) -> _Groups:
    return _Groups(_nibbles(groups[:, :, 4:]).flatten(1), _half(groups, 0), _half(groups, 2))


def _q5_0(groups: torch.Tensor) -> _Groups:
    quants = _five_bits(groups[:, :, 2:6], groups[:, :, 6:]).to(torch.int8)
    return _Groups(quants.flatten(1), _half(groups, 0))


def _q5_1(groups: torch.Tensor) -> _Groups:
    quants = _five_bits(groups[:, :, 4:8], groups[:, :, 8:]).to(torch.int8)
    return _Groups(quants.flatten(1), _half(groups, 0), _half(groups, 2))


def _q4_k(groups: torch.Tensor) -> _Groups:
    scales, minima = _scales_and_minima(groups)
    return _Groups(_nibbles_of_64(groups[:, :, 16:]).flatten(1), scales, minima)


def _q5_k(groups: torch.Tensor) -> _Groups:
    scales, minima = _scales_and_minima(groups)
    run = torch.arange(8, dtype=torch.uint8, device=groups.device)[:, None]
    high = (groups[:, :, None, 16:48] >> run) & 1
    quants = _nibbles_of_64(groups[:, :, 48:]) | (high << 4)
    return _Groups(quants.flatten(1).to(torch.int8), scales, minima)


def _q6_k(groups: torch.Tensor) -> _Groups:
    num_rows, num_groups = groups.shape[:2]
    low_bytes = groups[:, :, :128].reshape(num_rows, num_groups, 2, 2, 32)
    low = torch.cat([low_bytes & 0x0F, low_bytes >> 4], dim=3)
    shift = torch.arange(0, 8, 2, dtype=torch.uint8, device=groups.device)[:, None]
    high = (groups[:, :, 128:192].reshape(num_rows, num_groups, 2, 1, 32) >> shift) & 3
    quants = (low | (high << 4)).to(torch.int8) - 32
    scales = groups[:, :, 192:208].contiguous().view(torch.int8).float() * _half(groups, 208).float()[:, :, None]
    return _Groups(quants.reshape(num_rows, -1), scales.flatten(1))


def _q3_k(groups: torch.Tensor) -> _Groups:
    num_rows, num_groups = groups.shape[:2]
    run = torch.arange(8, dtype=torch.uint8, device=groups.device)[:, None]
    third = (groups[:, :, None, :32] >> run) & 1
    shift = torch.arange(0, 8, 2, dtype=torch.uint8, device=groups.device)[:, None]
    pairs = ((groups[:, :, 32:96].reshape(num_rows, num_groups, 2, 1, 32) >> shift) & 3).flatten(2, 3)
    quants = (pairs | (third << 2)).to(torch.int8) - 4
    upper = ((groups[:, :, None, 104:108] >> shift) & 3).flatten(2)
    numbers = _nibbles(groups[:, :, 96:104]) | (upper << 4)
    scales = _half(groups, 108).float()[:, :, None] * (numbers.float() - 32.0)
    return _Groups(quants.reshape(num_rows, -1), scales.flatten(1))


def _iq4_nl(groups: torch.Tensor) -> _Groups:
    return _Groups(_levels(IQ4_LEVELS, groups[:, :, 2:]).flatten(1), _half(groups, 0))


def _iq4_xs(groups: torch.Tensor) -> _Groups:
    high = groups[:, :, 2:4].contiguous().view(torch.int16).int()
    upper = (high >> torch.arange(0, 16, 2, device=groups.device)) & 3
    low = torch.stack([groups[:, :, 4:8] & 15, groups[:, :, 4:8] >> 4], dim=3).flatten(2)
    scales = _half(groups, 0).float()[:, :, None] * (low.float() + 16.0 * upper.float() - 32.0)
    return _Groups(
        _levels(IQ4_LEVELS, groups[:, :, 8:].reshape(*groups.shape[:2], 8, 16)).flatten(1), scales.flatten(1)
    )


def _mxfp4(groups: torch.Tensor) -> _Groups:
    exponents = groups[:, :, 0].int() - 128
    scales = torch.ldexp(torch.ones_like(exponents, dtype=torch.float32), exponents)
    return _Groups(_nibbles(groups[:, :, 1:]).flatten(1), scales)


def _unpacked(groups: torch.Tensor, *, format_name: str) -> _Groups:
    """Unpacks groups on the host."""
    num_rows, _, group_bytes = groups.shape
    numbers = unpacked(format_name, groups.cpu().numpy().reshape(-1, group_bytes))

    def on_device(numbers: NDArray[np.int8] | NDArray[np.float32]) -> torch.Tensor:
        return torch.from_numpy(numbers.reshape(num_rows, -1).copy()).to(groups.device)

    minima = None if numbers.minima is None else on_device(numbers.minima)
    return _Groups(on_device(numbers.quants), on_device(numbers.scales), minima)


def _levels(table: NDArray[np.float32], packed: torch.Tensor) -> torch.Tensor:
    """Looks up nibbles in a table of 16 levels: i8."""
    return torch.from_numpy(table).to(packed.device, torch.int8)[_nibbles(packed).long()]


def _nibbles_of_64(packed: torch.Tensor) -> torch.Tensor:
    """Returns [N, groups, 8, 32]: each 32 bytes hold two runs, one in the low and one in the high nibbles."""
    runs = packed.reshape(*packed.shape[:2], 4, 1, 32)
    return torch.cat([runs & 0x0F, runs >> 4], dim=3).flatten(2, 3)


def _scales_and_minima(groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns scales and negated minima of the K formats, [N, 8 groups] f32 each; see `weights/dequantize.py`."""
    first, second, third = groups[:, :, 4:8], groups[:, :, 8:12], groups[:, :, 12:16]
    scales = torch.cat([first & 0x3F, (third & 0x0F) | ((first >> 2) & 0x30)], dim=2)
    minima = torch.cat([second & 0x3F, (third >> 4) | ((second >> 2) & 0x30)], dim=2)
    scale, minimum = _half(groups, 0).float()[:, :, None], _half(groups, 2).float()[:, :, None]
    return (scale * scales).flatten(1), -(minimum * minima).flatten(1)


GROUPED_FORMATS: dict[str, _Format] = {
    "Q8_0": _Format(8, 32, 0, _q8_0),
    "Q4_0": _Format(4, 32, 8, _q4_0),
    "Q4_1": _Format(4, 32, 0, _q4_1),
    "Q5_0": _Format(8, 32, 16, _q5_0),
    "Q5_1": _Format(8, 32, 0, _q5_1),
    "Q4_K": _Format(4, 32, 0, _q4_k),
    "Q5_K": _Format(8, 32, 0, _q5_k),
    "Q6_K": _Format(8, 16, 0, _q6_k),
    "Q3_K": _Format(8, 16, 0, _q3_k),
    "IQ4_NL": _Format(8, 32, 0, _iq4_nl),
    "IQ4_XS": _Format(8, 32, 0, _iq4_xs),
    # Powers of two are exact in bf16.
    "MXFP4": _Format(4, 32, 0, _mxfp4, TWICE_E2M1, torch.bfloat16),
    **{
        name: _Format(
            8, 16 if name in ("Q2_K", "IQ2_XS", "IQ2_S", "IQ1_M") else 32, 0, partial(_unpacked, format_name=name)
        )
        for name in UNPACKED_FORMATS
    },
}
