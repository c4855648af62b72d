"""Weights of 4 or 8 bits with a scale for each group of inputs, as the kernels read them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trunkline_server.backends.cuda.weights import DeviceWeight

# Inputs that a kernel reads at a time; rows are padded to a multiple.
BLOCK_INPUTS = 128
# Groups that are shorter than a block.
SHORT_GROUPS = (16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class GroupedWeight(DeviceWeight):
    """Element k of a row is (q - zero) * scale, or q * scale + minimum, of its group's numbers.

    bits: 4 (unsigned) or 8 (signed, or codes of e4m3).
    quants: rows padded with zeros to whole blocks of `BLOCK_INPUTS`. 8 bits: i8 [N, padded K], u8 if they are codes of
        e4m3; 4 bits: u8 [N, padded K / 2], where byte j of a block holds its element j below element j + 64.
    group_size: elements of a group: one of `SHORT_GROUPS`, or a multiple of the block.
    scales: f16, bf16 or f32 [N, groups], padded to whole blocks, too; zeros, minima: alike, or None.
    table: f32 [16], what numbers of 4 bits mean, before all else; None: themselves.
    zero_point: of all groups, where both are None.
    order: i32 [K], which of x's columns each column of the weight belongs to; None: its own.
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
    """Inputs rounded up to whole blocks."""
    return -(-num_inputs // BLOCK_INPUTS) * BLOCK_INPUTS


def pad_columns(values: torch.Tensor, num_columns: int) -> torch.Tensor:
    """values [N, fewer] with columns of zeros, contiguous."""
    return torch.nn.functional.pad(values, (0, num_columns - values.shape[1])).contiguous()


def pack_nibbles(quants: torch.Tensor) -> torch.Tensor:
    """u8 [N, K], each below 16, as `GroupedWeight.quants` of 4 bits."""
    num_rows, num_inputs = quants.shape
    blocks = pad_columns(quants, padded(num_inputs)).view(num_rows, -1, 2, BLOCK_INPUTS // 2)
    return (blocks[:, :, 0] | (blocks[:, :, 1] << 4)).view(num_rows, -1)


def pad_groups(numbers: torch.Tensor, num_inputs: int, group_size: int) -> torch.Tensor:
    """A number for each group, [N, groups], padded to those of whole blocks."""
    return pad_columns(numbers, -(-padded(num_inputs) // group_size))
