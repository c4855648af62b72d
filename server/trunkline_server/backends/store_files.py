"""The store of KV blocks on disk (`store/` in Rust): its options, and how it is opened."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline_server.backends.interface import BackendInfo
from trunkline_server.errors import InvalidArgument

if TYPE_CHECKING:
    from trunkline_server._kernels import Store as KernelStore

logger = logging.getLogger(__name__)

# Blocks on disk begin at pages.
SLOT_MULTIPLE = 4096
# The kernels read the records of so many at once.
MAX_SLOTS = 1 << 26


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """`--kv-disk-path` and `--kv-disk-size`."""

    path: Path
    max_bytes: int


def open_files(info: BackendInfo, options: StoreOptions) -> tuple[KernelStore | None, BackendInfo]:
    """Opens the store of this model in its folder of `options.path`; returns what `info` is with it.

    A disk that refuses is a warning, and there is no store. Raises InvalidArgument if another server uses the folder or
    the size holds no block.
    """
    from trunkline_server import _kernels

    block_bytes = info.bytes_per_block + info.bytes_per_window_part
    slot_bytes = -(-block_bytes // SLOT_MULTIPLE) * SLOT_MULTIPLE
    num_slots = min(options.max_bytes // slot_bytes, MAX_SLOTS)
    if num_slots == 0:
        raise InvalidArgument(
            f"`--kv-disk-size` is {options.max_bytes} bytes, but one block of this model has {slot_bytes}",
            hint="give at least some hundred blocks",
        )
    folder = options.path.absolute() / info.numeric_fingerprint
    try:
        store = _kernels.Store(
            folder,
            fingerprint=info.numeric_fingerprint,
            block_bytes=block_bytes,
            block_size=info.block_size,
            num_slots=num_slots,
        )
    except BlockingIOError as error:
        raise InvalidArgument(f"`--kv-disk-path` cannot be used: {error}") from error
    except OSError as error:
        logger.warning(
            "KV blocks are not kept on disk: %s; hint: let `--kv-disk-path` be a folder that can be written, on a disk "
            "with room, or leave it out",
            error,
        )
        return None, info
    if store.lost is not None:
        logger.warning("the store of KV blocks begins anew: %s", store.lost)
    if store.num_damaged:
        logger.warning("%d damaged blocks of the store are lost", store.num_damaged)
    fields = {
        "folder": folder,
        "blocks": store.num_blocks,
        "slots": num_slots,
        "gib": f"{num_slots * slot_bytes / 2**30:.1f}",
    }
    logger.info("store of KV blocks opened", extra={"fields": fields})
    info = replace(info, num_store_slots=num_slots, store_folder=str(folder))
    return store, info
