"""The pool's layout, sizes and copies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.cuda import kv_oracle
from trunkline_server.backends.cuda.kv_pool import KvFormat, KvLayout, KvPool
from trunkline_server.errors import InvalidArgument


def make_pool(format: str, device: str) -> KvPool:
    pool = kv_oracle.make_pool(format, device, num_layers=3, num_blocks=7, head_size=80)
    generator = torch.Generator().manual_seed(0)
    pool.pieces.copy_(torch.randint(0, 256, pool.pieces.shape, generator=generator))
    return pool


@pytest.mark.parametrize(
    ("format", "bytes_per_head"),
    # Elements and, except for the first three, a scale of two bytes.
    [("f32", 512), ("bf16", 256), ("f16", 256), ("fp8", 128 + 2), ("int8", 128 + 2), ("int4", 64 + 2)],
)
def test_the_size_of_a_block_is_that_of_elements_and_scales(format: str, bytes_per_head: int) -> None:
    layout = KvLayout(block_size=16, num_kv_heads=8, head_size=128, format=KvFormat(format))
    first_keys = 8 * bytes_per_head if format == "int4" else 0
    assert layout.piece_bytes == -(-(2 * 16 * 8 * bytes_per_head + first_keys) // 128) * 128
    latents = KvLayout(block_size=64, num_kv_heads=1, head_size=576, format=KvFormat.BF16, latent_size=512)
    assert latents.piece_bytes == 64 * 576 * 2, "keys alone"


@pytest.mark.parametrize("format", [format.value for format in KvFormat])
def test_views_of_a_layer_cover_its_pieces(format: str, device: str) -> None:
    pool = make_pool(format, device)
    layout = pool.layout
    pool.pieces.zero_()
    pool.elements(1)[3, : 2 * layout.values_offset] = 1
    if layout.format.has_scales:
        pool.scales(1)[3, : 2 * layout.num_kv_heads * layout.block_size] = 1
    assert pool.pieces[1, 3].any() and not pool.pieces[[0, 2]].any()
    assert not pool.pieces[1, [0, 1, 2, 4, 5, 6]].any()
    assert pool.bytes_per_block * pool.num_blocks == pool.pieces.numel()


def test_one_block_is_copied_by_its_ids(device: str) -> None:
    pool = make_pool("fp8", device)
    expected = pool.pieces.clone()
    expected[:, 1] = expected[:, 4]
    pool.copy_block(4, 1)
    assert torch.equal(pool.pieces, expected)


LATENTS = {"head_size": 576, "latent_size": 512}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(
            ({"block_size": size}, f"block size is {size}, must be a power of two from 16 to 128")
            for size in (8, 24, 256)
        ),
        *(({"head_size": size}, f"head size is {size}, must be a multiple of 16 up to 256") for size in (0, 72, 272)),
        (
            {**LATENTS, "format": KvFormat.INT8},
            "`--kv-cache-dtype` is int8, but the cuda backend keeps latents as bf16",
        ),
        ({**LATENTS, "format": KvFormat.FP8}, "`--kv-cache-dtype` is fp8"),
        ({**LATENTS, "head_size": 560}, "rotated part of a key has 48 features, must be a power of two from 16 to 512"),
        ({"head_size": 112, "latent_size": 96}, "the latent has 96 features"),
        ({"head_size": 1088, "latent_size": 1024}, "the latent has 1024 features"),
    ],
)
def test_sizes_and_formats_without_kernels_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        KvLayout(**{"block_size": 16, "num_kv_heads": 1, "head_size": 64, "format": KvFormat.BF16, **changes})
