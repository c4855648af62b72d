"""The cache of packed weights: its folder, its keys and its log messages.

The kernels own the file format and its checks (`kernels/src/weight_cache.rs`); this module maps a checkpoint to a file.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline_server.backends.cpu.key_scaling import KeyScalingFile
from trunkline_server.errors import InvalidArgument
from trunkline_server.weights.quantize import NONE

if TYPE_CHECKING:
    from trunkline_server._kernels import CacheWriter, Executor, WeightCache
    from trunkline_server.weights.checkpoint import Checkpoint
    from trunkline_server.weights.tensor import Weight

logger = logging.getLogger(__name__)

# Limit for all files in the folder. The kernels also take at most half of the disk's free space.
MAX_BYTES = 64 * 2**30
# The same while weights are streamed.
MAX_STREAMED_BYTES = 2**50
_KEY_BYTES = 32
_NAME_DIGITS = 32


def default_folder() -> Path | None:
    """Returns `trunkline/weights` in the user's cache folder; None if there is no such folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification requires that relative paths are ignored.
    if not base.is_absolute():
        base = Path(os.environ.get("HOME", "")) / ".cache"
    return base / "trunkline" / "weights" if base.is_absolute() else None


def fingerprint_of(checkpoint: Checkpoint) -> str:
    """Returns `checkpoint.fingerprint()`, computed by the kernels, which drop pages of mapped files as they go."""
    from trunkline_server import _kernels

    return checkpoint.fingerprint(partial(_kernels.page_sums, is_mapped=True))


@dataclass(frozen=True)
class WeightsPlace:
    """The folder of packed weights, and the most bytes of weights in memory; None for all of them."""

    folder: Path
    memory: int | None = None


def weights_place(folder: Path | None, memory: int | None) -> WeightsPlace | None:
    """Returns None if packed weights are not kept. Raises InvalidArgument if they must be."""
    if folder is None and memory is not None:
        raise InvalidArgument(
            "`--weights-memory` is set, but `--weights-cache` is off or has no folder",
            hint="name a folder on a fast disk with `--weights-cache`",
        )
    return None if folder is None else WeightsPlace(folder, memory)


class PackedWeights:
    """The packed weights of one checkpoint, before and after the kernels have looked them up.

    tensors: in the order in which the kernels receive them; quantization: to which they are
    quantised while they are packed, "none" for as they are.
    """

    def __init__(
        self, checkpoint: Checkpoint, tensors: Sequence[Weight], place: WeightsPlace, quantization: str
    ) -> None:
        from trunkline_server import _kernels

        self._identity = checkpoint.identity()
        key = hashlib.blake2b(self._identity.digest, digest_size=_KEY_BYTES)
        for tensor in tensors:
            # The kernels know weights only by number, so the key covers which weight has which number.
            key.update(repr((tensor.name, tensor.format, tensor.shape, tensor.interleaved_heads)).encode())
        if quantization != NONE:
            key.update(quantization.encode())
        if (pooling := checkpoint.config.pooling) is not None and pooling.answer_rows:
            # Files outside the identity say which rows a score is made of.
            key.update(repr(pooling.answer_rows).encode())
        self._key_digits = key.hexdigest()
        # Without its file, a model that exceeds its memory cannot be served.
        max_bytes = MAX_BYTES if place.memory is None else MAX_STREAMED_BYTES
        self.cache: WeightCache = _kernels.WeightCache(
            place.folder, key=key.digest(), max_bytes=max_bytes, memory=place.memory
        )
        self._writer: CacheWriter | None = None
        self._fingerprint = ""

    @property
    def is_settled(self) -> bool:
        """Returns True if data derived from the files may be cached: they have not changed recently."""
        return self._identity.is_settled and self._identity.still_holds()

    def key_scaling_file(self, numerics_version: int, block_size: int) -> KeyScalingFile:
        """Returns the file for these weights' key scaling with blocks of this size."""
        name = f"{self._key_digits[:_NAME_DIGITS]}-{numerics_version}-{block_size}.keys"
        return KeyScalingFile(self.cache.path.parent / name)

    def log_lookup(self, executor: Executor, checkpoint: Checkpoint) -> str:
        """Logs the result of the look-up and returns the checkpoint's fingerprint, from the cache if it was a hit."""
        if (note := executor.cache_note) is not None:
            self._log_loaded(executor, "weights mapped", cache=self.cache.path)
            return note
        miss = executor.take_cache_miss()
        assert miss is not None
        reason, is_fault, self._writer = miss
        if is_fault:
            logger.warning("ignoring the cache of packed weights: %s", reason)
        self._log_loaded(executor, "weights packed")
        self._fingerprint = fingerprint_of(checkpoint)
        return self._fingerprint

    def keep(self) -> None:
        """Writes packed weights that the cache lacked. A failure is logged, and the next start packs again."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        began = time.monotonic()
        reason = None
        try:
            if not self._identity.is_settled:
                reason = "the model's files changed a moment ago"
            elif not self._identity.still_holds():
                reason = "the model's files have changed since they were opened"
            else:
                num_bytes = writer.keep(self._fingerprint)
        except OSError as error:
            reason = str(error)
        if reason is not None:
            logger.warning("cannot cache the packed weights: %s", reason)
            return
        fields = {
            "path": self.cache.path,
            "mib": "cached by another process" if num_bytes is None else num_bytes >> 20,
            "seconds": f"{time.monotonic() - began:.2f}",
        }
        logger.info("packed weights cached", extra={"fields": fields})

    @staticmethod
    def _log_loaded(executor: Executor, message: str, **fields: object) -> None:
        logger.info(message, extra={"fields": {"weight_mib": executor.weight_bytes >> 20, **fields}})
        if executor.stream is not None:
            resident, streamed, ahead, disk_speed = executor.stream
            fields = {
                "resident_mib": resident >> 20,
                "read_ahead_mib": ahead >> 20,
                "read_mib_per_step": streamed >> 20,
                "disk_mib_per_second": disk_speed >> 20,
                "most_steps_per_second": f"{disk_speed / streamed:.2f}",
            }
            message = "weights exceed `--weights-memory` and are read from disk in every step"
            logger.info(message, extra={"fields": fields})
