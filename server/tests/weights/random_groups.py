"""Random tensors in the formats of GGUF."""

from __future__ import annotations

import numpy as np
from trunkline_server.weights.tensor import FORMATS

# Offsets of the f16 scales and minima in a group.
SCALE_OFFSETS = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
    "Q6_K": [208], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0],
    "Q2_K": [80, 82], "TQ1_0": [52], "TQ2_0": [64], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0],
    "IQ3_S": [0], "IQ1_S": [0],
}  # fmt: skip


def random_groups(format_name: str, num_groups: int, seed: int) -> np.ndarray:
    """Returns random bytes whose f16 scales are finite."""
    raw = np.random.default_rng(seed).integers(0, 256, (num_groups, FORMATS[format_name].group_bytes), dtype=np.uint8)
    for offset in SCALE_OFFSETS.get(format_name, []):
        raw[:, offset + 1] &= 0xBF  # clears the top exponent bit, so there is no infinity or NaN
    if format_name == "IQ1_M":
        raw[:, 55] &= 0xBF  # the upper nibble of the scale
    if format_name == "MXFP4":
        raw[:, 0] %= 250  # larger scales overflow
    if format_name in ("F32", "F16", "BF16"):
        raw[:, -1] &= 0xBF
    return raw
