"""Philox 4x32-10, the counter-based generator behind every sampled token.

Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011, doi:10.1145/2063384.2063405.

    key      (seed & 0xffffffff, seed >> 32)
    counter  (position, choice, 0, 0)          position: absolute position of the sampled token, from 0
    uniform  (word 0 >> 8) * 2^-24             in [0, 1), exact in f32
    xtc      (word 1 >> 8) * 2^-24             XTC applies if this is below its probability
    token    the first, by descending probability (ties by lower id), whose cumulative probability exceeds
             uniform times the kept mass

A number depends only on seed, choice and position, not on the batch, the chunking, a restart or the machine.
"""

from __future__ import annotations

from typing import Any, TypeVar

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = 0xFFFFFFFF

# An int or an array of u64.
Word = TypeVar("Word", bound=Any)


def philox_4x32_10(counter: tuple[Word, Word, Word, Word], key: tuple[int, int]) -> tuple[Word, Word, Word, Word]:
    """Runs ten rounds over four 32-bit counter words (each may be an array of u64) under two 32-bit key words."""
    words: tuple[Any, ...] = counter
    c0, c1, c2, c3 = words
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> 32) ^ c1 ^ k0, product1 & _MASK, (product0 >> 32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def uniforms(seed: int, choice: int, position: int) -> tuple[float, float]:
    """Returns the numbers in [0, 1) for the token at `position`: the first draws it, the second decides about XTC.

    seed: u64; choice, position: u32.
    """
    words = philox_4x32_10((position, choice, 0, 0), (seed & _MASK, seed >> 32))
    return (words[0] >> 8) * 2.0**-24, (words[1] >> 8) * 2.0**-24
