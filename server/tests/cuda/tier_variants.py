"""Variants of the tiers' kernels that are compiled for Hopper; see `compiled`."""

from __future__ import annotations

from tests.cuda.compiled import Variant
from trunkline_server.backends.cuda.kernels import pack_pieces

# The variants that `make test` compiles: one of each kind.
FIRST = {"pack"}


def variants() -> list[Variant]:
    """Returns kernels for a pool in which the words of one layer exceed 32 bits."""
    types = {"pieces": "*i64", "packed": "*i64", "block_ids": "*i32", "layer_stride": "i64"}
    return [
        Variant(
            "pack" if is_packing else "unpack",
            pack_pieces._pack_kernel,
            types,
            {"IS_PACKING": is_packing, "WORDS": pack_pieces._WORDS},
            aligned=frozenset({"layer_stride", "piece_words"}),
        )
        for is_packing in (True, False)
    ]
