"""Launches that begin while the launch before them ends (programmatic dependent launch, from Hopper on).

A kernel that is launched with `overlap` calls `await_previous` first, so it reads and writes nothing before the launch
before it has ended, and its own memory accesses end before the next launch reads. Launches without `overlap` begin when
everything before them has ended, as always.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.target_info import cuda_capability_geq

from trunkline_server.backends.cuda.kernels.card import card_of
from trunkline_server.backends.cuda.kernels.numerics import INTERPRETED

# Off until a card has shown that it is faster and that the bits stay; see docs/gpu.md.
OVERLAPS_LAUNCHES = False
_OVERLAP_CAPABILITY = (9, 0)


@triton.jit
def await_previous():
    """Waits until the launch before has ended, and lets the next one begin to wait. Does nothing before Hopper."""
    if INTERPRETED:
        pass
    elif cuda_capability_geq(9):
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()


def overlap(device: torch.device) -> dict[str, bool]:
    """Returns the launch options of a kernel that calls `await_previous` first."""
    if OVERLAPS_LAUNCHES and not INTERPRETED.value and card_of(device).capability >= _OVERLAP_CAPABILITY:
        return {"launch_pdl": True}
    return {}
