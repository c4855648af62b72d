"""Philox 4x32-10 against the known answers that Random123 publishes (`kat_vectors`, lines `philox4x32 10`)."""

from __future__ import annotations

import numpy as np
import pytest
from trunkline_server.sampling.philox import philox_4x32_10, uniforms

KNOWN_ANSWERS = [
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], answer: tuple[int, int, int, int]
) -> None:
    assert philox_4x32_10(counter, key) == answer


def test_uniform_uses_both_halves_of_the_seed_and_the_documented_words() -> None:
    seed = 0x299F31D0_A4093822
    word = philox_4x32_10((7, 3, 0, 0), (0xA4093822, 0x299F31D0))[0]
    assert uniforms(seed, choice=3, position=7)[0] == (word >> 8) / 2**24


def test_uniform_lies_in_the_unit_interval_and_is_flat() -> None:
    numbers = np.array([uniforms(42, 0, position)[0] for position in range(4000)])
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts = np.histogram(numbers, bins=10, range=(0, 1))[0]
    # The expected count is 400 in each, with a standard deviation of 19.
    assert np.abs(counts - 400).max() < 100
    assert len({uniforms(42, choice, 0)[0] for choice in range(100)}) == 100
