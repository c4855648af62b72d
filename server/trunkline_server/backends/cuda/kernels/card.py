"""The properties of a GPU by which kernels and their tiles are chosen.

From the table of technical specifications in the CUDA C++ Programming Guide, appendix "Compute Capabilities".
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

# The first capability whose tensor cores multiply bf16.
LEAST_CAPABILITY = (8, 0)
# The first capability whose tensor cores multiply e4m3.
FP8_CAPABILITY = (8, 9)
# The first capability that copies tiles by itself (TMA).
TENSOR_COPY_CAPABILITY = (9, 0)
# Most shared memory of a program, in KiB. A multiprocessor has 1 KiB more, and each of its programs reserves 1 KiB.
SHARED_KIB = {
    (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227,
    (10, 0): 227, (10, 3): 227, (11, 0): 227, (12, 0): 99, (12, 1): 99,
}  # fmt: skip
KEPT_BYTES = 1 << 10
# The card for which products are divided in the interpreter, which has no limits.
_HOPPER, _H200_PROCESSORS = (9, 0), 132
# In the interpreter, programs of kernels that loop over work; few, so that each gets several pieces.
_INTERPRETED_PROGRAMS = 2


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU. capability: major and minor; num_processors: multiprocessors."""

    capability: tuple[int, int]
    num_processors: int

    @property
    def shared_bytes(self) -> int:
        """Most shared memory of a program. A card that is not in the table gets the smallest amount in it."""
        return SHARED_KIB.get(self.capability, min(SHARED_KIB.values())) << 10

    @property
    def half_shared_bytes(self) -> int:
        """Most shared memory of a program if two share a multiprocessor."""
        return (self.shared_bytes + KEPT_BYTES) // 2 - KEPT_BYTES

    @property
    def multiplies_fp8(self) -> bool:
        return self.capability >= FP8_CAPABILITY

    @property
    def copies_tensors(self) -> bool:
        return self.capability >= TENSOR_COPY_CAPABILITY

    @property
    def products_are_async(self) -> bool:
        """True if a product of four warps reads both operands from shared memory (wgmma, tcgen05).

        Otherwise each warp multiplies 16 rows from registers (mma.sync).
        """
        return (9, 0) <= self.capability < (12, 0)

    @property
    def multiplies_by_wgmma(self) -> bool:
        """True if ptxas waits behind each single product of a kernel in which something reads a sum before Triton waits
        for it. Elsewhere, waiting longer to read it costs registers.
        """
        return (9, 0) <= self.capability < (10, 0)

    @property
    def name(self) -> str:
        """The capability in its usual notation."""
        return f"{self.capability[0]}.{self.capability[1]}"


@cache
def card_of(device: torch.device) -> Card:
    """Returns the card of a device; in the interpreter, the one for which kernels are optimised."""
    if device.type != "cuda":
        return Card(_HOPPER, _H200_PROCESSORS)
    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return Card(torch.cuda.get_device_capability(device), processors)


def num_programs(device: torch.device) -> int:
    """Returns the number of programs for kernels with one program per multiprocessor."""
    return card_of(device).num_processors if device.type == "cuda" else _INTERPRETED_PROGRAMS


def copies_tensors(device: torch.device) -> bool:
    """Returns True if the device's copy engine loads tiles."""
    return device.type == "cuda" and card_of(device).copies_tensors
