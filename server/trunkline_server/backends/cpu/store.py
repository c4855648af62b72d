"""The store of KV blocks on disk: opened by the kernels (`store/` in Rust), which also move the blocks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline_server.backends.interface import BackendInfo, Restore, RestoreOutcome, StoreOutcome, Transfers
from trunkline_server.errors import InvalidArgument, PlanError

if TYPE_CHECKING:
    from trunkline_server._kernels import Executor
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


class DiskStore:
    """Implements `Store` over the executor, which knows the blocks, and the kernels' store."""

    def __init__(self, executor: Executor, store: KernelStore) -> None:
        executor.attach_store(store)
        self._executor = executor
        self._store = store

    def restore(self, restore: Restore) -> None:
        blocks = [(block.slot, block.block_id, block.key, block.base_only) for block in restore.blocks]
        try:
            self._executor.restore(restore.restore_id, blocks)
        except ValueError as error:
            raise PlanError(f"restore {restore.restore_id}: {error}") from error

    def discard(self, slots: Sequence[int]) -> None:
        try:
            self._executor.discard(slots)
        except ValueError as error:
            raise PlanError(f"discard: {error}") from error

    def take_outcomes(self) -> Transfers | None:
        stores, restores = self._store.take_outcomes()
        if not stores and not restores:
            return None
        # At most once a minute: a full disk must not fill the log as well.
        if (warning := self._store.take_warning()) is not None:
            logger.warning("a block was not stored or restored: %s", warning)
        return Transfers(
            [StoreOutcome(*outcome) for outcome in stores], [RestoreOutcome(*outcome) for outcome in restores]
        )

    def wait_outcomes(self, timeout_s: float) -> None:
        self._store.wait_outcomes(timeout_s)

    def wake(self) -> None:
        self._store.wake()

    def sync(self) -> None:
        stored, not_stored, restored, not_restored = self._store.counts
        fields = {
            "stored": stored,
            "not_stored": not_stored,
            "restored": restored,
            "not_restored": not_restored,
        }
        try:
            self._store.sync()
        except OSError as error:
            logger.warning("the store of KV blocks is not synced: %s", error, extra={"fields": fields})
            return
        logger.info("store of KV blocks closed", extra={"fields": fields})


def open_store(executor: Executor, info: BackendInfo, options: StoreOptions) -> tuple[DiskStore | None, BackendInfo]:
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
    return DiskStore(executor, store), info
