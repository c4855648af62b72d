"""Repacks GGUF's quantised groups for the device, which also reads them (`weights/dequantize.py`).

Formats of three, five and six bits become eight, and so do levels of tables, except MXFP4's. The K formats' products of
scales (f16 times 6 bits) are rounded to f16, an error of a quarter of bf16's rounding of the element.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trunkline_server.backends.cuda.quantized.grouped import GroupedWeight, grouped
from trunkline_server.backends.cuda.quantized.stack import stacked
from trunkline_server.weights.dequantize import TWICE_E2M1, nibbles, unpacked
from trunkline_server.weights.tensor import FORMATS

GROUPED_FORMATS = tuple(name for name in FORMATS if name not in ("F32", "F16", "BF16"))
# The formats that stay 4 bits, and what is subtracted from their unsigned numbers.
_FOUR_BITS = {"Q4_0": 8, "Q4_1": 0, "Q4_K": 0, "MXFP4": 0}
# Bytes decoded at a time. Temporaries take up to ten times as much.
_CHUNK_BYTES = 64 << 20


def gguf_weight(format_name: str, parts: Sequence[torch.Tensor], dtype: torch.dtype) -> GroupedWeight:
    """Repacks rows of one format. parts: rows as stored, [rows, bytes] u8, on the device, which are joined."""
    pieces = []
    for part in parts:
        step = max(1, _CHUNK_BYTES // part.shape[1])
        pieces += [_repacked(format_name, rows, dtype) for rows in torch.split(part, step)]
    weight = stacked(pieces)
    assert isinstance(weight, GroupedWeight), "all pieces have the format's kind"
    return weight


def _repacked(format_name: str, rows: torch.Tensor, dtype: torch.dtype) -> GroupedWeight:
    groups = rows.reshape(-1, FORMATS[format_name].group_bytes)
    numbers = unpacked(format_name, groups)
    quants, zero_point, table, scale_dtype = numbers.quants, _FOUR_BITS.get(format_name), None, torch.float16
    if format_name == "MXFP4":
        # Powers of two are exact in bf16.
        quants, scale_dtype = nibbles(groups[:, 1:]), torch.bfloat16
        table = torch.from_numpy(TWICE_E2M1).to(rows.device, torch.float32)
    elif zero_point is not None:
        quants = (quants + zero_point).view(torch.uint8)

    def by_row(numbers: torch.Tensor) -> torch.Tensor:
        return numbers.reshape(len(rows), -1)

    return grouped(
        by_row(quants if zero_point is not None else quants.view(torch.int8)), by_row(numbers.scales).to(scale_dtype),
        quants.shape[1] // numbers.scales.shape[1], dtype=dtype, bits=8 if zero_point is None else 4,
        minima=None if numbers.minima is None else by_row(numbers.minima).to(scale_dtype),
        zero_point=zero_point or 0, table=table,
    )  # fmt: skip
