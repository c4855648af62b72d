"""Finds kernels that keep values in memory because a thread has too few registers, which makes them slow."""

from __future__ import annotations

import sys

# Up to so many bytes per thread are a few scalars, which cost nothing.
MAX_SPILLED_BYTES = 128
# Triton counts words.
_WORD_BYTES = 4


def spilling_kernels() -> dict[str, int]:
    """Returns the most bytes that a thread spills, by the name of the kernel, of those that this process has loaded."""
    found: dict[str, int] = {}
    for module in [module for name, module in sys.modules.items() if name.startswith(f"{__package__}.")]:
        for name, function in vars(module).items():
            # Kernels by their arguments are the first part of what a function keeps for each device.
            loaded = [one for kept in getattr(function, "device_caches", {}).values() for one in kept[0].values()]
            spilled = _WORD_BYTES * max((getattr(one, "n_spills", None) or 0 for one in loaded), default=0)
            if spilled > MAX_SPILLED_BYTES:
                found[name] = max(spilled, found.get(name, 0))
    return found
