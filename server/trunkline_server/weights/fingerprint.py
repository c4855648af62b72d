"""A hash over all bytes of a model's files, computed at memory speed.

Each 4 KiB page is reduced to `sum(word[i] * odd[i]) mod 2^64` over its 512 little-endian words. These sums, the rest of
the file below a page, and the file's length go into BLAKE2b. The factors are odd, so a change of any one word of a page
changes its sum. The factors differ, so swapping two words changes it too, except with probability near 2^-64.

The hash tells apart files that differ by accident, conversion or training. It does not resist deliberate collisions.
`kernels/src/page_sums.rs` computes the sums where the kernels are built; numpy computes the same ones.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

PAGE_BYTES = 4096
_DIGEST_BYTES = 16

PageSums = Callable[[memoryview], bytes]


def fingerprint_bytes(files: Sequence[memoryview], page_sums: PageSums | None = None) -> str:
    """Returns the hash of the given bytes, in this order, as 32 lower-case hex digits.

    page_sums: computes the sums of whole pages; None: numpy does.
    """
    page_sums = page_sums or numpy_page_sums
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for file in files:
        whole_pages = file.nbytes // PAGE_BYTES * PAGE_BYTES
        digest.update(file.nbytes.to_bytes(8, "little"))
        digest.update(page_sums(file[:whole_pages]))
        digest.update(file[whole_pages:])
    return digest.hexdigest()


def numpy_page_sums(pages: memoryview) -> bytes:
    """Returns the sums of whole pages as little-endian u64. Imports numpy, which is a large part of a start's time."""
    import numpy as np

    # SplitMix64 (doi:10.1145/2714064.2660195) of 1, 2, 3, ..., made odd.
    mixed = np.arange(1, PAGE_BYTES // 8 + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    factors = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    words = np.frombuffer(pages, dtype="<u8").reshape(-1, factors.shape[0])
    sums: bytes = np.einsum("ij,j->i", words, factors).astype("<u8").tobytes()
    return sums
