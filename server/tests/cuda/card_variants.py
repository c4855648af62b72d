"""Variants that are compiled for other cards than Hopper: one or two of each kernel that depends on the card."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.cuda.attention_variants import OUTPUT, attention, latents
from tests.cuda.compiled import Variant
from tests.cuda.product_variants import dense, four_or_eight_bits
from trunkline_server.backends.cuda.kernels.attention import stages_of
from trunkline_server.backends.cuda.kernels.attention_plan import SPLIT_ROWS, whole_rows_of
from trunkline_server.backends.cuda.kernels.attention_split import split_kernel
from trunkline_server.backends.cuda.kernels.attention_whole import whole_kernel
from trunkline_server.backends.cuda.kernels.card import Card
from trunkline_server.backends.cuda.kernels.kv_elements import FLOAT
from trunkline_server.backends.cuda.kernels.linear_grouped import stages_on

# `make test` compiles only for Hopper.
FIRST: frozenset[str] = frozenset()


def variants(card: Card) -> Iterator[Variant]:
    for variant in _variants(card):
        yield replace(variant, name=f"{card.name} {variant.name}")


def _variants(card: Card) -> Iterator[Variant]:
    is_tma = card.copies_tensors
    if not card.products_are_async:
        yield from latents()
    yield dense("bf16", (28672, 4096), 8192, is_tma=is_tma, card=card)
    if card.multiplies_fp8:
        yield dense("fp8e4nv", (28672, 4096), 64, is_tma=is_tma, card=card)
    else:
        yield four_or_eight_bits(8, 4096, 64, e4m3=True, num_stages=stages_on(card))
        yield _split(card, FLOAT.value, "bf16", 128)
        yield attention(whole_kernel, "whole bf16", FLOAT.value, 128, whole_rows_of(card), **OUTPUT)
    if card.products_are_async:
        yield dense("bf16", (4096, 14336), 1, is_tma=is_tma, card=card)
        yield _split(card, FLOAT.value, "bf16", 128)
    elif card.copies_tensors:
        yield four_or_eight_bits(4, 128, 64, zeros=True, num_stages=stages_on(card))
    elif card.multiplies_fp8:
        # The widest heads on the least shared memory.
        yield _split(card, FLOAT.value, "bf16", 256)


def _split(card: Card, kind: int, name: str, head_size: int) -> Variant:
    variant = attention(split_kernel, f"split {name}", kind, head_size, SPLIT_ROWS)
    return replace(variant, num_stages=stages_of(card, name, head_size))
