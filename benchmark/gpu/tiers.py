"""Checks that blocks return unchanged from the tiers below the device, and compares the speed with the bus's own rates.

It uses a pool of the model's shape, pinned memory and the backend's store, but no weights.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from trunkline_server._proto.shard_pb2 import BlockRestore, BlockStore, Chunk, Restore, Transfers
from trunkline_server.backends.cuda.build import BLOCK_SIZE
from trunkline_server.backends.cuda.device import Device
from trunkline_server.backends.cuda.host_pool import pinned_blocks
from trunkline_server.backends.cuda.kv_pool import KvFormat, KvLayout, KvPool
from trunkline_server.backends.cuda.tiers import TieredStore
from trunkline_server.backends.host_memory import available_memory
from trunkline_server.backends.interface import sampling_params
from trunkline_server.backends.sequences import RunningSequence

from gpu.probes import best_seconds
from gpu.shapes import SHAPES

# The longest wait for an outcome, which only a failure reaches.
DEADLINE_S = 60.0
REPEATS = 3
PROBE_BYTES = 256 << 20


def bus_rates(device: Device, num_bytes: int = PROBE_BYTES) -> dict[str, float]:
    """Measures bytes per second of one long copy to and from pinned memory."""
    kind = device.torch_device.type
    pinned = device.pinned_bytes(num_bytes)
    memory = torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device)
    out = best_seconds(kind, lambda: device.copy(memory, pinned))
    back = best_seconds(kind, lambda: device.copy(pinned, memory))
    return {"bus_out_bytes_per_s": num_bytes / out, "bus_in_bytes_per_s": num_bytes / back}


def measure(
    device: Device, model: str, num_tokens: int, *, kv_dtype: str = "bf16", block_size: int = BLOCK_SIZE
) -> dict[str, float]:
    """Stores a history, erases it, and restores it into other blocks. Raises AssertionError if a byte differs."""
    shape = SHAPES[model]
    count = num_tokens // block_size
    layout = KvLayout(
        block_size=block_size, num_kv_heads=shape.num_key_value_heads, head_size=shape.head_dim,
        format=KvFormat(kv_dtype),
    )  # fmt: skip
    pool = KvPool(layout, num_layers=shape.num_hidden_layers, num_blocks=count, device=device.torch_device)
    num_bytes = count * pool.bytes_per_block
    # Each piece of pinned memory has only whole blocks, so a little of it is unused.
    host = pinned_blocks(
        num_bytes + num_bytes // 8 + 4 * pool.bytes_per_block, num_layers=pool.num_layers,
        piece_bytes=pool.layout.piece_bytes, pin=device.pinned_bytes, available_bytes=available_memory(),
    )  # fmt: skip
    tiers = TieredStore(device, pool, host)
    tiers.start(1, bytes(16))
    sequence = RunningSequence([0] * count * block_size, 0, sampling_params(), list(range(count)))
    figures = {"tokens": float(count * block_size), "bytes": float(num_bytes)}
    for _ in range(REPEATS):
        pool.pieces.random_(0, 256)
        sums = _sums(pool)
        stores_of_all = [BlockStore(block_index=index, slot=index) for index in range(count)]
        chunk = Chunk(sequence_id=1, num_tokens=count * block_size, stores=stores_of_all)
        device.wait()
        began = time.perf_counter()
        stores = tiers.begin_stores([(chunk, sequence)])
        assert stores is not None
        _best(figures, "store_host_s", time.perf_counter() - began)
        device.wait()
        _best(figures, "store_s", time.perf_counter() - began)
        tiers.end_stores(stores, ())
        stored = _outcomes(tiers, lambda transfers: len(transfers.stores), count)
        assert all(one.is_stored for transfers in stored for one in transfers.stores), "a block was not stored"
        pool.pieces.zero_()
        device.wait()
        began = time.perf_counter()
        # Block i is restored into block count - 1 - i.
        blocks = [BlockRestore(slot=index, block_id=count - 1 - index, key=bytes(16)) for index in range(count)]
        tiers.restore(Restore(restore_id=1, blocks=blocks))
        (outcome,) = _outcomes(tiers, lambda transfers: len(transfers.restores), 1)
        _best(figures, "restore_told_s", time.perf_counter() - began)
        device.wait()
        _best(figures, "restore_s", time.perf_counter() - began)
        assert outcome.restores[0].num_blocks == count, "a block was not restored"
        assert torch.equal(_sums(pool).flip(1), sums), "a block has changed"
    figures["store_bytes_per_s"] = num_bytes / figures["store_s"]
    figures["restore_bytes_per_s"] = num_bytes / figures["restore_s"]
    return figures


def _sums(pool: KvPool) -> torch.Tensor:
    """Returns a checksum of each piece, [layers, blocks], in which bytes are weighted by their position."""
    places = torch.arange(1, pool.layout.piece_bytes + 1, dtype=torch.int64, device=pool.pieces.device)
    return torch.stack(
        [torch.stack([(block.to(torch.int64) * places).sum() for block in layer]) for layer in pool.pieces]
    )


def _outcomes(tiers: TieredStore, number: Callable[[Transfers], int], wanted: int) -> list[Transfers]:
    found: list[Transfers] = []
    end = time.monotonic() + DEADLINE_S
    while sum(number(transfers) for transfers in found) < wanted:
        assert time.monotonic() < end, f"no outcome within {DEADLINE_S} s"
        if (transfers := tiers.take_outcomes()) is None:
            tiers.wait_outcomes(DEADLINE_S)
        else:
            found.append(transfers)
    return found


def _best(figures: dict[str, float], name: str, seconds: float) -> None:
    figures[name] = min(figures.get(name, seconds), seconds)
