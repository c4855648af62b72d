"""Blocks are packed and unpacked, and nothing else is changed."""

from __future__ import annotations

import pytest
import torch
from trunkline_server.backends.cuda.kernels.pack_pieces import pack_pieces, unpack_pieces


@pytest.mark.parametrize("piece_bytes", [128, 2048 * 8, 2048 * 8 + 384])
def test_some_layers_of_some_blocks_are_packed_and_unpacked(piece_bytes: int, device: str) -> None:
    generator = torch.Generator().manual_seed(1)
    pool = torch.randint(0, 256, (5, 7, piece_bytes), generator=generator, dtype=torch.uint8).to(device)
    layers = slice(1, 4)
    ids = [6, 0, 3]
    block_ids = torch.tensor(ids, dtype=torch.int32, device=device)
    packed = torch.zeros(3, 3, piece_bytes, dtype=torch.uint8, device=device)
    before = pool.clone()
    pack_pieces(pool[layers], block_ids, packed)
    assert torch.equal(pool, before)
    assert torch.equal(packed, pool[layers][:, ids].transpose(0, 1))
    targets = [2, 6, 1]
    expected = pool.clone()
    expected[layers, targets] = packed.transpose(0, 1)
    unpack_pieces(packed, torch.tensor(targets, dtype=torch.int32, device=device), pool[layers])
    assert torch.equal(pool, expected)
