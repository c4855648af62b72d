"""The store of KV blocks on disk (`store/` in Rust): its options, and how it is opened."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trunkline_server._proto.shard_pb2 import StoreContentsResponse
from trunkline_server.backends.interface import BackendInfo
from trunkline_server.errors import InvalidArgument

if TYPE_CHECKING:
    from trunkline_server._kernels import Store as KernelStore

logger = logging.getLogger(__name__)

# Blocks on disk start at page boundaries.
SLOT_MULTIPLE = 4096
# Limit on slots, because the router indexes all of them.
MAX_SLOTS = 1 << 26
# Slots whose records are read at once, which bounds the messages to the router.
SLOTS_PER_PIECE = 4096
# Time that the other process has to give the folder up: its disk may be slow.
HAND_OVER_S = 10.0
HAND_OVER_POLL_S = 0.01


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The settings of the store on disk, and the arguments `--lane` and `--await-store` of the shard."""

    path: Path
    max_bytes: int
    # Lanes of this model, each of which gets an equal part of `max_bytes`.
    num_lanes: int = 1
    # True if the server does without the store when the folder cannot be used.
    is_optional: bool = False
    lane: int = 0
    # True if another process gives the folder up as soon as the launcher knows that this one waits for it.
    awaits: bool = False

    def folder(self, fingerprint: str) -> Path:
        """Returns the folder of a lane's store. Lane 0 has the name that every store had before there were lanes."""
        return self.path.absolute() / (f"{fingerprint}.{self.lane}" if self.lane else fingerprint)


class Records(Protocol):
    """The part of `_kernels.Store` that reads records."""

    @property
    def num_slots(self) -> int: ...

    def contents(self, first_slot: int, num_slots: int) -> bytes: ...


class Removals(Protocol):
    """The part of `_kernels.Store` that tells which stores beside it gave way."""

    def take_removed(self) -> list[tuple[PathLike[str], int, str | None]]: ...


def read_contents(records: Records) -> Iterator[StoreContentsResponse]:
    """Yields the blocks of all slots; where slots are empty, a piece has no blocks. Raises OSError."""
    for first in range(0, records.num_slots, SLOTS_PER_PIECE):
        yield StoreContentsResponse.FromString(records.contents(first, SLOTS_PER_PIECE))


def _await(open_store: Callable[[], KernelStore]) -> KernelStore:
    """Opens a store that another process may use now. Raises BlockingIOError if that process keeps it."""
    try:
        return open_store()
    except BlockingIOError:
        # A report to the launcher (`Report` in the crate `settings`).
        print(json.dumps("awaits_store"), flush=True)  # noqa: T201
    deadline = time.monotonic() + HAND_OVER_S
    while True:
        try:
            return open_store()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(HAND_OVER_POLL_S)


def log_removed(store: Removals) -> None:
    """Logs which other stores below `--kv-disk-path` gave way to this one since the last call."""
    for folder, num_bytes, problem in store.take_removed():
        fields = {"folder": folder, "gib": f"{num_bytes / 2**30:.1f}"}
        if problem is None:
            logger.info("KV blocks of another model or format made room for this one's", extra={"fields": fields})
        else:
            hint = f"hint: use `trunkline cache rm {folder} --all`"
            logger.warning("`--kv-disk-size` is exceeded: %s; %s", problem, hint, extra={"fields": fields})


def take_files_back(store: KernelStore) -> None:
    """Takes a store back that was given up, or logs why that is not possible."""
    try:
        store.take_back()
    except OSError as error:
        logger.warning("KV blocks are not kept on disk until the shard is restarted: %s", error)
        return
    logger.info("KV block store taken back")


def close_files(store: KernelStore | None, counts: dict[str, int]) -> None:
    """Makes written blocks durable, and logs a failure. counts: of blocks stored and restored; store: None if they are
    in memory.
    """
    try:
        if store is not None:
            store.sync()
    except OSError as error:
        logger.warning("cannot sync the KV block store: %s", error, extra={"fields": counts})
        return
    logger.info("KV block store closed", extra={"fields": counts})


def _for_lanes(options: StoreOptions) -> str:
    return "" if options.num_lanes == 1 else f" for {options.num_lanes} replicas"


def open_files(info: BackendInfo, options: StoreOptions) -> tuple[KernelStore | None, BackendInfo]:
    """Opens the model's store in the lane's folder below `options.path`; returns it, and `info` with its slots and
    folder.

    If the disk refuses, or another server uses the folder, and the store is optional, logs a warning and returns None
    for the store. Raises InvalidArgument if the store is not optional, or if the size is too small for one block.
    """
    from trunkline_server import _kernels

    block_bytes = info.bytes_per_block + info.bytes_per_window_part
    slot_bytes = -(-block_bytes // SLOT_MULTIPLE) * SLOT_MULTIPLE
    num_slots = min(options.max_bytes // options.num_lanes // slot_bytes, MAX_SLOTS)
    if num_slots == 0:
        raise InvalidArgument(
            f"`--kv-disk-size` is {options.max_bytes} bytes{_for_lanes(options)}, but one block of this model takes "
            f"{slot_bytes}",
            hint="allow for at least a few hundred blocks",
        )
    folder = options.folder(info.numeric_fingerprint)
    open_store = partial(
        _kernels.Store,
        folder,
        fingerprint=info.numeric_fingerprint,
        block_bytes=block_bytes,
        block_size=info.block_size,
        num_slots=num_slots,
        shared_bytes=options.max_bytes,
    )
    try:
        store = _await(open_store) if options.awaits else open_store()
    except OSError as error:
        # The message about another process has a hint of its own.
        is_in_use = isinstance(error, BlockingIOError)
        hint = None if is_in_use else "set `--kv-disk-path` to a writable folder with free space"
        if not options.is_optional:
            if hint is not None:
                hint += ", or serve without it by `--kv-disk-optional`"
            raise InvalidArgument(f"cannot use `--kv-disk-path`: {error}", hint=hint) from error
        logger.warning("KV blocks are not kept on disk: %s%s", error, "" if hint is None else f"; hint: {hint}")
        return None, info
    if store.lost is not None:
        logger.warning("KV block store starts empty: %s", store.lost)
    if store.num_damaged:
        blocks = "block" if store.num_damaged == 1 else "blocks"
        logger.warning("dropped %d damaged %s from the KV block store", store.num_damaged, blocks)
    fields = {
        "folder": folder,
        "blocks": store.num_blocks,
        "slots": num_slots,
        "gib": f"{num_slots * slot_bytes / 2**30:.1f}",
    }
    logger.info("KV block store opened", extra={"fields": fields})
    log_removed(store)
    info = replace(info, num_store_slots=num_slots, store_folder=str(folder))
    return store, info
