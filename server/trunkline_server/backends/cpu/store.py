"""The CPU backend's store of KV blocks on disk."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from trunkline_server._proto.shard_pb2 import Restore, StoreContentsResponse, Transfers
from trunkline_server.backends.interface import BackendInfo
from trunkline_server.backends.store_files import (
    StoreOptions,
    close_files,
    log_removed,
    open_files,
    read_contents,
    take_files_back,
)
from trunkline_server.errors import PlanError

if TYPE_CHECKING:
    from trunkline_server._kernels import Executor
    from trunkline_server._kernels import Store as KernelStore

logger = logging.getLogger(__name__)


class DiskStore:
    """Implements `Store` over the executor, which knows the blocks, and the store of the kernels, which moves them."""

    def __init__(self, executor: Executor, store: KernelStore) -> None:
        executor.attach_store(store)
        self._executor = executor
        self._store = store

    def contents(self) -> Iterator[StoreContentsResponse]:
        return read_contents(self._store)

    def restore(self, restore: Restore) -> None:
        try:
            self._executor.restore(restore.SerializeToString())
        except ValueError as error:
            raise PlanError(f"restore {restore.restore_id}: {error}") from error

    def discard(self, slots: Sequence[int]) -> None:
        try:
            self._executor.discard(slots)
        except ValueError as error:
            raise PlanError(f"discard: {error}") from error

    def take_outcomes(self) -> Transfers | None:
        transfers: Transfers = Transfers.FromString(self._store.take_outcomes())
        if not transfers.stores and not transfers.restores:
            return None
        log_removed(self._store)
        # The kernels limit this to once a minute, so that a full disk does not fill the log as well.
        if (warning := self._store.take_warning()) is not None:
            logger.warning("a block was not stored or restored: %s", warning)
        return transfers

    def wait_outcomes(self, timeout_s: float) -> None:
        self._store.wait_outcomes(timeout_s)

    def wake(self) -> None:
        self._store.wake()

    def give_up(self) -> None:
        self._store.give_up()
        logger.info("KV block store handed over")

    def take_back(self) -> None:
        take_files_back(self._store)

    def sync(self) -> None:
        names = ("stored", "not_stored", "restored", "not_restored")
        close_files(self._store, dict(zip(names, self._store.counts, strict=True)))


def open_store(executor: Executor, info: BackendInfo, options: StoreOptions) -> tuple[DiskStore | None, BackendInfo]:
    """Opens the model's store as `open_files` does; returns it, and `info` with its slots and folder."""
    store, info = open_files(info, options)
    if store is None:
        return None, info
    return DiskStore(executor, store), replace(info, reads_other_stores=True)
