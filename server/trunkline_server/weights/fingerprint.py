"""A hash over all bytes of a model's files, at memory speed.

Covers every byte: each 4 KiB page is reduced to `sum(word[i] * odd[i]) mod 2^64` over its 512 little-endian words, and
the sums, the rest of the file below a page and its length go into BLAKE2b. Since the factors are odd, a change of any
one word of a page changes its sum; since they differ, so does an exchange of two (except with probability near 2^-64).
Tells files apart that differ by accident, conversion or training; it is no proof against someone who makes a collision
on purpose. About 5 ms for 100 MB that are in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PAGE_BYTES = 4096
_DIGEST_BYTES = 16


def fingerprint_bytes(files: Sequence[NDArray[np.uint8]]) -> str:
    """Lower-case hex, 32 digits, of the given byte arrays in this order."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    factors = _odd_factors(_PAGE_BYTES // 8)
    for file in files:
        whole_pages = file.shape[0] // _PAGE_BYTES * _PAGE_BYTES
        words = file[:whole_pages].view("<u8").reshape(-1, factors.shape[0])
        digest.update(int(file.shape[0]).to_bytes(8, "little"))
        digest.update(np.einsum("ij,j->i", words, factors).astype("<u8").tobytes())
        digest.update(file[whole_pages:].tobytes())
    return digest.hexdigest()


def _odd_factors(count: int) -> NDArray[np.uint64]:
    """SplitMix64 (doi:10.1145/2714064.2660195) of 1, 2, 3, ..., made odd."""
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
