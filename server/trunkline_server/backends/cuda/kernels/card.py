"""What kernels and their tiles are chosen by: what a GPU of a compute capability has.

From the table of technical specifications in the CUDA C++ Programming Guide, appendix "Compute Capabilities".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

# Below it tensor cores multiply no bf16.
LEAST_CAPABILITY = (8, 0)
# From here on tensor cores multiply e4m3.
FP8_CAPABILITY = (8, 9)
# From here on the device copies tiles by itself (TMA).
TENSOR_COPY_CAPABILITY = (9, 0)
# Most shared memory of a program, in KiB. A multiprocessor has one more, and each of its programs keeps one of its own.
SHARED_KIB = {
    (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227,
    (10, 0): 227, (10, 3): 227, (11, 0): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
KEPT_BYTES = 1 << 10
# What products are cut for in the interpreter, where nothing has a limit.
_HOPPER, _H200_PROCESSORS = (9, 0), 132
# Programs of kernels that take one piece of work after the other: few, so that each has several.
_INTERPRETED_PROGRAMS = 2


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU. capability: major and minor; num_processors: multiprocessors."""

    capability: tuple[int, int]
    num_processors: int

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of a program; of a card that is not in the table, the least of those that are."""
        return SHARED_KIB.get(self.capability, min(SHARED_KIB.values())) << 10

    @property
    def half_shared_bytes(self) -> int:
        """Most shared memory of programs of which two fit a multiprocessor."""
        return (self.shared_bytes + KEPT_BYTES) // 2 - KEPT_BYTES

    @property
    def multiplies_fp8(self) -> bool:
        return self.capability >= FP8_CAPABILITY

    @property
    def copies_tensors(self) -> bool:
        return self.capability >= TENSOR_COPY_CAPABILITY

    @property
    def products_are_async(self) -> bool:
        """Whether a product of four warps reads both its sides from shared memory (wgmma, tcgen05).

        Else each warp multiplies 16 rows by itself, of registers (mma.sync).
        """
        return (9, 0) <= self.capability < (12, 0)

    @property
    def name(self) -> str:
        """The capability, as people write it."""
        return f"{self.capability[0]}.{self.capability[1]}"


@cache
def card_of(device: torch.device) -> Card:
    """The card that `device` is; in the interpreter, that which kernels are written for first."""
    if device.type != "cuda":
        return Card(_HOPPER, _H200_PROCESSORS)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Card(torch.cuda.get_device_capability(device), processors)


def num_programs(device: torch.device) -> int:
    """Of kernels that have a program for each multiprocessor."""
    return card_of(device).num_processors if device.type == "cuda" else _INTERPRETED_PROGRAMS


def copies_tensors(device: torch.device) -> bool:
    """Whether tiles come by the device's copy engine."""
    return device.type == "cuda" and card_of(device).copies_tensors
