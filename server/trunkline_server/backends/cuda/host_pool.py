"""Pins host memory for blocks. The layers of a block lie one after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import torch

from trunkline_server.errors import DoesNotFit

logger = logging.getLogger(__name__)

# Most bytes that are pinned at once. Pieces are powers of two, because the pinned allocator rounds up to them.
MAX_PIECE_BYTES = 1 << 30
# Host memory that is left to other processes.
RESERVE_BYTES = 1 << 30
PROGRESS_INTERVAL_S = 2.0


def piece_sizes(num_bytes: int, block_bytes: int) -> list[int]:
    """Returns the sizes of the pieces in which `num_bytes` are pinned: powers of two, each with room for a block."""
    sizes, size = [], MAX_PIECE_BYTES
    while size < block_bytes:
        size *= 2
    while size >= block_bytes:
        while num_bytes >= size:
            sizes.append(size)
            num_bytes -= size
        size //= 2
    return sizes


def least_bytes(block_bytes: int) -> int:
    """Returns the smallest size of a piece that has room for a block."""
    return 1 << (block_bytes - 1).bit_length()


def pinned_blocks(
    num_bytes: int,
    *,
    num_layers: int,
    piece_bytes: int,
    pin: Callable[[int], torch.Tensor],
    available_bytes: int,
) -> list[torch.Tensor]:
    """Pins memory for blocks, each [num_layers, piece_bytes] u8 and contiguous. Raises DoesNotFit if the host refuses.

    pin: allocates the given number of bytes of pinned memory, u8; available_bytes: what the host has left.
    """
    block_bytes = num_layers * piece_bytes
    sizes = piece_sizes(num_bytes, block_bytes)
    if not sizes:
        raise DoesNotFit(
            f"`--kv-host-size` is {num_bytes} bytes, but a block of this model has {block_bytes} and needs "
            f"{least_bytes(block_bytes)} of pinned memory",
            hint="allow for at least a few hundred blocks",
        )
    wanted = sum(sizes)
    if wanted > available_bytes - RESERVE_BYTES:
        raise _does_not_fit(wanted, 0, available_bytes)
    began = logged = time.monotonic()
    blocks: list[torch.Tensor] = []
    done = 0
    for size in sizes:
        try:
            memory = pin(size)
        except RuntimeError as error:
            raise _does_not_fit(wanted, done, available_bytes) from error
        count = size // block_bytes
        blocks += memory[: count * block_bytes].view(count, num_layers, piece_bytes).unbind(0)
        done += size
        if time.monotonic() - logged >= PROGRESS_INTERVAL_S:
            logged = time.monotonic()
            logger.info("pinning host memory", extra={"fields": {"mib": done >> 20, "of_mib": wanted >> 20}})
    fields = {"mib": wanted >> 20, "blocks": len(blocks), "seconds": f"{time.monotonic() - began:.1f}"}
    logger.info("host memory pinned", extra={"fields": fields})
    return blocks


def _does_not_fit(wanted: int, done: int, available: int) -> DoesNotFit:
    refused = f", and the system refused after {done >> 20} MiB" if done else ""
    return DoesNotFit(
        f"`--kv-host-size` takes {wanted >> 20} MiB of pinned memory, but the host has {available >> 20} MiB "
        f"available, of which {RESERVE_BYTES >> 20} MiB stay reserved{refused}",
        hint="lower `--kv-host-size`",
    )
