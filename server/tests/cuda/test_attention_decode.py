"""Attention of decodes in one launch against the launches that it joins, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cuda.kv_oracle import i32, make_rope, make_scene, random
from tests.tiers import full
from trunkline_server.backends.cuda.kernels.attention import paged_attention
from trunkline_server.backends.cuda.kernels.attention_decode import decode_attention
from trunkline_server.backends.cuda.kernels.attention_plan import SPLIT
from trunkline_server.backends.cuda.kernels.rope_kv import rope_and_write_kv, rope_tables

# Contexts of the first position, of one and of several splits, and one that ends with a split.
CONTEXTS = [1, SPLIT + 3, 3 * SPLIT, 40]


@pytest.mark.parametrize(
    ("format", "sizes", "options"),
    [
        ("bf16", {"num_heads": 6, "num_kv_heads": 2}, {}),
        ("fp8", {}, {"window": SPLIT + 9}),
        ("bf16", {"rotary": 16}, {"window": 40, "sinks": [0.4, 3.7]}),
        ("bf16", {"rotary": 0}, {"soft_cap": 2.0}),
        full("f16", {"head_size": 80, "block_size": 64}, {}),
        full("bf16", {"num_heads": 32, "num_kv_heads": 8, "head_size": 128, "block_size": 64}, {}),
    ],
)
def test_one_launch_has_the_bits_of_its_parts(
    format: str, sizes: dict[str, int], options: dict[str, Any], device: str
) -> None:
    sizes, options = dict(sizes), dict(options)
    rotary = sizes.pop("rotary", sizes.get("head_size", 32))
    scene = make_scene([(context, 1) for context in CONTEXTS], device=device, format=format, **sizes)
    shape, num_rows = scene.shape, len(CONTEXTS) + 2
    widths = [shape.num_heads * shape.head_size] + 2 * [shape.num_kv_heads * shape.head_size]
    # Laid out as a stacked product leaves them, with padding rows behind.
    q, k, v = (random(num_rows, sum(widths) + 8) * 2).to(scene.queries.dtype).to(device)[:, 8:].split(widths, dim=1)
    tables = rope_tables(make_rope(rotary), 1024, device) if rotary else None
    positions = i32([context - 1 for context in CONTEXTS] + [0, 0], device)
    slots = i32([int(scene.slots(index)[-1]) for index in range(len(CONTEXTS))] + [-1, -1], device)
    prepared = scene.prepared(
        max_partial_rows=16, padding_rows=2, padding_entries=1, window=options.pop("window", None)
    )
    if "sinks" in options:
        options["sinks"] = torch.tensor(options["sinks"], device=device)
    before = scene.pool.pieces.clone()
    queries = rope_and_write_kv(q, k, v, positions, slots, tables, scene.pool, 1)
    expected = paged_attention(queries, scene.pool, 1, *prepared, 0.125, decode_only=True, **options)
    pieces = scene.pool.pieces.clone()
    for _ in range(2):
        scene.pool.pieces.copy_(before)
        out = torch.full_like(expected, 7.0)
        decode_attention(q, k, v, tables, scene.pool, 1, *prepared, 0.125, out=out, **options)
        assert torch.equal(scene.pool.pieces, pieces)
        assert torch.equal(out[: len(CONTEXTS)], expected[: len(CONTEXTS)])
        assert (out[len(CONTEXTS) :] == 7.0).all(), "padding rows are not written"
        assert not prepared[2].partials.arrivals.any()
