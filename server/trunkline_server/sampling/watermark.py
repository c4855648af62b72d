"""A watermark in the choice of tokens, and how it is found in a text.

Kirchenbauer et al., "A Watermark for Large Language Models", ICML 2023, arXiv:2301.10226: the soft one, with one token
of context. Before a token is chosen, those that are green after the token before get `delta` added to their logits.

    key      (key & 0xffffffff, key >> 32)
    counter  (token before, token // 4, 1, 0)     1: kept apart from the numbers that draw tokens
    green    word token % 4 of Philox 4x32-10 is below gamma * 2^32

Whoever has the key counts the green tokens of a text: of one that was not marked `gamma` of them are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from trunkline_server.sampling.philox import philox_4x32_10

if TYPE_CHECKING:
    from numpy.typing import NDArray

DEFAULT_GAMMA = 0.5
DEFAULT_DELTA = 2.0
# TGI's; known to everybody, so whoever wants to keep others from finding or forging the mark takes another.
DEFAULT_KEY = 15_485_863

# Fewer pairs of tokens than this cannot show a mark, whatever their colours: z of 16 green ones is 4 with gamma 0.5.
MIN_SCORED = 16

_DOMAIN = 1
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Score:
    """What a text's tokens show.

    num_scored: pairs of a token and the one before it that differ from each other; num_green: of these. z: how many
    standard deviations that is above what a text without the mark has. p: how likely such a text shows as much.
    """

    num_scored: int
    num_green: int
    z: float
    p: float

    @property
    def green_fraction(self) -> float:
        return self.num_green / self.num_scored


def green_below(gamma: float) -> int:
    """Words below it are of green tokens; gamma: as f32 has it, which from 2^-8 on makes it exact."""
    return int(float(np.float32(gamma)) * 2.0**32)


def is_green(previous: NDArray[np.int64], token_ids: NDArray[np.int64], gamma: float, key: int) -> NDArray[np.bool_]:
    """Which tokens are green after those before them, element by element."""
    before, tokens = previous.astype(np.uint64), token_ids.astype(np.uint64)
    zeros = np.zeros(np.broadcast(before, tokens).shape, dtype=np.uint64)
    counter = (before + zeros, tokens // np.uint64(4) + zeros, zeros + np.uint64(_DOMAIN), zeros)
    words = np.stack(philox_4x32_10(counter, (key & _MASK, key >> 32)))
    chosen = np.take_along_axis(words, (tokens % np.uint64(4) + zeros).astype(np.int64)[None], 0)[0]
    green: NDArray[np.bool_] = chosen < np.uint64(green_below(gamma))
    return green


def detect(token_ids: Sequence[int], *, gamma: float = DEFAULT_GAMMA, key: int = DEFAULT_KEY) -> Score:
    """How much of a watermark the tokens of a text show; a pair that occurs again is not evidence, and not counted.

    Raises ValueError if fewer than MIN_SCORED pairs are left.
    """
    pairs = sorted(set(pairwise(token_ids)))
    if len(pairs) < MIN_SCORED:
        raise ValueError(
            f"the text is too short: {len(token_ids)} tokens with {len(pairs)} different pairs, at least {MIN_SCORED} "
            "are needed"
        )
    previous, tokens = np.array(pairs, dtype=np.int64).T
    num_green = int(np.count_nonzero(is_green(previous, tokens, gamma, key)))
    z = (num_green - gamma * len(pairs)) / math.sqrt(len(pairs) * gamma * (1 - gamma))
    return Score(len(pairs), num_green, z, 0.5 * math.erfc(z / math.sqrt(2)))
