"""Logits and masses for comparing typical sampling with transformers; see `tests/models/record.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SEEDS = range(40)


def typical_case(seed: int) -> tuple[NDArray[np.float32], float]:
    """Returns logits and `typical_p`."""
    random = np.random.RandomState(seed)
    size = random.randint(1, 400)
    logits = (random.normal(size=size) * random.choice([0.1, 1.0, 4.0])).astype(np.float32)
    return logits, float(random.choice([0.05, 0.2, 0.5, 0.9, 0.99]))
