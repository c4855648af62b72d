"""Weights of 4 or 8 bits with a scale for each group of inputs, in the form that the kernels read."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunkline_server.backends.cuda.weights import DeviceWeight

# Inputs that a kernel reads at a time. Rows are padded to a multiple.
BLOCK_INPUTS = 128
# Group sizes below a block.
SHORT_GROUPS = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class GroupedWeight(DeviceWeight):
    """A weight whose element k of a row is (q - zero) * scale or q * scale + minimum, with the numbers of its group.

    bits: 4 (unsigned) or 8 (signed, or codes of e4m3).
    quants: rows padded with zeros to whole blocks of `BLOCK_INPUTS`. 8 bits: i8 [N, padded K], u8 for codes of e4m3;
        4 bits: u8 [N, padded K / 2], where byte j of a block holds its element j below element j + 64.
    group_size: elements of a group: one of `SHORT_GROUPS`, or a multiple of the block.
    scales: f16, bf16 or f32 [N, groups], padded to whole blocks too; zeros, minima: alike, or None.
    table: f32 [16], values that replace numbers of 4 bits before all else; None: the numbers themselves.
    zero_point: of all groups, if zeros and minima are None.
    order: i32 [K], the column of x to which each column of the weight belongs; None: the same column.
    """

    bits: int
    quants: torch.Tensor
    group_size: int
    scales: torch.Tensor
    zeros: torch.Tensor | None = None
    minima: torch.Tensor | None = None
    zero_point: int = 0
    table: torch.Tensor | None = None
    order: torch.Tensor | None = None

    @property
    def is_e4m3(self) -> bool:
        return self.bits == 8 and self.quants.dtype == torch.uint8


def padded(num_inputs: int) -> int:
    """Returns the number of inputs rounded up to whole blocks."""
    return -(-num_inputs // BLOCK_INPUTS) * BLOCK_INPUTS


def grouped(
    quants: torch.Tensor,
    scales: torch.Tensor,
    group_size: int,
    *,
    bits: int,
    dtype: torch.dtype,
    zeros: torch.Tensor | None = None,
    minima: torch.Tensor | None = None,
    zero_point: int = 0,
    table: torch.Tensor | None = None,
    order: torch.Tensor | None = None,
) -> GroupedWeight:
    """Packs and pads a weight. quants: [N, K], u8 below 16 for 4 bits; scales, zeros, minima: [N, groups]."""
    num_outputs, num_inputs = quants.shape
    num_groups = -(-padded(num_inputs) // group_size)
    return GroupedWeight(
        num_outputs=num_outputs, num_inputs=num_inputs, dtype=dtype, bits=bits, group_size=group_size,
        quants=_packed_nibbles(quants) if bits == 4 else _pad_columns(quants, padded(num_inputs)),
        scales=_pad_columns(scales, num_groups), zeros=None if zeros is None else _pad_columns(zeros, num_groups),
        minima=None if minima is None else _pad_columns(minima, num_groups),
        zero_point=zero_point, table=table, order=order,
    )  # fmt: skip


def _pad_columns(values: torch.Tensor, num_columns: int) -> torch.Tensor:
    """Pads values [N, fewer] with columns of zeros; the result is contiguous."""
    return torch.nn.functional.pad(values, (0, num_columns - values.shape[1])).contiguous()


def _packed_nibbles(quants: torch.Tensor) -> torch.Tensor:
    num_rows, num_inputs = quants.shape
    blocks = _pad_columns(quants, padded(num_inputs)).view(num_rows, -1, 2, BLOCK_INPUTS // 2)
    return (blocks[:, :, 0] | (blocks[:, :, 1] << 4)).view(num_rows, -1)
