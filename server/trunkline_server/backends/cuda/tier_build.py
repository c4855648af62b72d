"""Builds the tiers below the device from the command line's options: pinned memory, a disk, or both."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trunkline_server.backends.cuda.copies import staging_bytes
from trunkline_server.backends.cuda.device import Device
from trunkline_server.backends.cuda.host_pool import least_bytes, pinned_blocks
from trunkline_server.backends.cuda.kv_pool import KvPool
from trunkline_server.backends.cuda.tiers import TieredStore
from trunkline_server.backends.host_memory import available_memory
from trunkline_server.backends.interface import BackendInfo
from trunkline_server.backends.store_files import StoreOptions, open_files

# Pinned memory if there is a disk and no `--kv-host-size`: for blocks on their way to and from the disk.
DEFAULT_BYTES_WITH_DISK = 1 << 30
# Staging buffers on the device: one for the way out, two for the way in.
_NUM_STAGING = 3


@dataclass(frozen=True, kw_only=True)
class TierOptions:
    """The tiers below the device. host_bytes: `--kv-host-size`, None if not set; disk: None without one."""

    host_bytes: int | None = None
    disk: StoreOptions | None = None

    @property
    def is_empty(self) -> bool:
        """True if blocks are kept only on the device."""
        return self.host_bytes is None and self.disk is None

    def device_bytes(self, block_bytes: int) -> int:
        """Returns the device memory that the tiers take."""
        return 0 if self.is_empty else _NUM_STAGING * staging_bytes(block_bytes)


def make_tiers(
    device: Device, pool: KvPool, info: BackendInfo, options: TierOptions
) -> tuple[TieredStore | None, BackendInfo]:
    """Opens the disk store and pins memory as `options` require; returns the tiers, and `info` with their slots.

    A disk that refuses is only a warning, as on the CPU. Raises DoesNotFit, InvalidArgument.
    """
    files = None
    if options.disk is not None:
        files, info = open_files(info, options.disk)
    num_bytes = options.host_bytes
    if num_bytes is None:
        if files is None:
            return None, info
        # Never more than the disk holds, and never less than a piece with room for a block.
        wanted = min(DEFAULT_BYTES_WITH_DISK, info.num_store_slots * pool.bytes_per_block)
        num_bytes = max(wanted, least_bytes(pool.bytes_per_block))
    host = pinned_blocks(
        num_bytes,
        num_layers=pool.num_layers,
        piece_bytes=pool.layout.piece_bytes,
        pin=device.pinned_bytes,
        available_bytes=available_memory(),
    )
    if files is None:
        tiers = TieredStore(device, pool, host)
        info = replace(info, num_store_slots=len(host))
    else:
        from trunkline_server._kernels import extend_key

        tiers = TieredStore(device, pool, host, files=files, extend_key=extend_key)
    return tiers, info
