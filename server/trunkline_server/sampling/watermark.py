"""A watermark in the choice of tokens, and its detection in a text.

Kirchenbauer et al., "A Watermark for Large Language Models", ICML 2023, arXiv:2301.10226: the soft watermark with one
token of context. Before a token is chosen, `delta` is added to the logits of all tokens that are green after the
previous token.

    key      (key & 0xffffffff, key >> 32)
    counter  (previous token, token // 4, 1, 0)     the 1 separates these numbers from those that draw tokens
    green    word token % 4 of Philox 4x32-10 is below gamma * 2^32

Anyone with the key can count the green tokens of a text. In a text without the watermark, a share of `gamma` is green.
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
# TGI's key. It is public, so operators who want to keep others from finding or forging the watermark need another.
DEFAULT_KEY = 15_485_863

# Fewer pairs of tokens cannot show a watermark, whatever their colours: 16 green ones have z = 4 with gamma 0.5.
MIN_SCORED = 16

_DOMAIN = 1
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Score:
    """The strength of the watermark in a text.

    num_scored: distinct pairs of a token and the one before it.
    num_green: pairs whose second token is green.
    z: standard deviations by which `num_green` exceeds the mean of texts without a watermark.
    p: probability that a text without a watermark has a `z` at least as large.
    """

    num_scored: int
    num_green: int
    z: float
    p: float

    @property
    def green_fraction(self) -> float:
        return self.num_green / self.num_scored


def green_below(gamma: float) -> int:
    """Returns the bound below which a word makes a token green. gamma: rounded to f32, exact from 2^-8 on."""
    return int(float(np.float32(gamma)) * 2.0**32)


def is_green(previous: NDArray[np.int64], token_ids: NDArray[np.int64], gamma: float, key: int) -> NDArray[np.bool_]:
    """Returns which tokens are green after those before them, elementwise."""
    before, tokens = previous.astype(np.uint64), token_ids.astype(np.uint64)
    zeros = np.zeros(np.broadcast(before, tokens).shape, dtype=np.uint64)
    counter = (before + zeros, tokens // np.uint64(4) + zeros, zeros + np.uint64(_DOMAIN), zeros)
    words = np.stack(philox_4x32_10(counter, (key & _MASK, key >> 32)))
    chosen = np.take_along_axis(words, (tokens % np.uint64(4) + zeros).astype(np.int64)[None], 0)[0]
    green: NDArray[np.bool_] = chosen < np.uint64(green_below(gamma))
    return green


def detect(token_ids: Sequence[int], *, gamma: float = DEFAULT_GAMMA, key: int = DEFAULT_KEY) -> Score:
    """Measures the watermark in the tokens of a text. A repeated pair is no further evidence and is not counted.

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
