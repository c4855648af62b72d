"""Packed weights kept from one start to the next: where, under which key, and what is said of it.

The file and its checks are the kernels' (`kernels/src/weight_cache.rs`); this says which file belongs to a checkpoint.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from trunkline_server.backends.cpu.key_scaling import KeyScalingFile

if TYPE_CHECKING:
    from trunkline_server._kernels import CacheWriter, Executor, WeightCache
    from trunkline_server.weights.checkpoint import Checkpoint
    from trunkline_server.weights.tensor import Tensor

logger = logging.getLogger(__name__)

# Of all files in the folder; the kernels take no more than half of what the disk could give, either.
MAX_BYTES = 64 * 2**30
_KEY_BYTES = 32
_NAME_DIGITS = 32


def default_folder() -> Path | None:
    """`trunkline/weights` in the user's folder of caches; None if there is no such folder."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says that relative paths are to be ignored.
    if not base.is_absolute():
        base = Path(os.environ.get("HOME", "")) / ".cache"
    return base / "trunkline" / "weights" if base.is_absolute() else None


def fingerprint_of(checkpoint: Checkpoint) -> str:
    """`checkpoint.fingerprint()`, computed by the kernels, which drop pages of the mapped files as they go."""
    from trunkline_server import _kernels

    return checkpoint.fingerprint(partial(_kernels.page_sums, is_mapped=True))


class PackedWeights:
    """The packed weights of one checkpoint, before and after the kernels have looked for them.

    tensors: in the order in which they are given to the kernels. folder: of the cache.
    """

    def __init__(self, checkpoint: Checkpoint, tensors: Sequence[Tensor], folder: Path) -> None:
        from trunkline_server import _kernels

        self._identity = checkpoint.identity()
        key = hashlib.blake2b(self._identity.digest, digest_size=_KEY_BYTES)
        for tensor in tensors:
            # The kernels know weights by number only: which is which is in the key.
            key.update(repr((tensor.name, tensor.format, tensor.shape, tensor.interleaved_head)).encode())
        self._key_digits = key.hexdigest()
        self.cache: WeightCache = _kernels.WeightCache(folder, key=key.digest(), max_bytes=MAX_BYTES)
        self._writer: CacheWriter | None = None
        self._fingerprint = ""

    @property
    def is_settled(self) -> bool:
        """Whether what is made of the files may be kept: they have not just been changed."""
        return self._identity.is_settled and self._identity.still_holds()

    def key_scaling_file(self, numerics_version: int, block_size: int) -> KeyScalingFile:
        """Where these weights' scaling of keys is kept, for blocks of this size."""
        name = f"{self._key_digits[:_NAME_DIGITS]}-{numerics_version}-{block_size}.keys"
        return KeyScalingFile(self.cache.path.parent / name)

    def found(self, executor: Executor, checkpoint: Checkpoint) -> str:
        """Says what the kernels have found; returns the checkpoint's fingerprint, from the cache where it is there."""
        if (note := executor.cache_note) is not None:
            self._log_loaded(executor, "weights mapped", cache=self.cache.path)
            return note
        miss = executor.take_cache_miss()
        assert miss is not None
        reason, is_fault, self._writer = miss
        if is_fault:
            logger.warning("the cache of packed weights is of no use: %s", reason)
        self._log_loaded(executor, "weights packed")
        self._fingerprint = fingerprint_of(checkpoint)
        return self._fingerprint

    def keep(self) -> None:
        """Writes packed weights that were not found to the cache. A failure is logged: the next start packs again."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        began = time.monotonic()
        reason = None
        try:
            if not self._identity.is_settled:
                reason = "the model's files have just been changed"
            elif not self._identity.still_holds():
                reason = "the model's files have changed since they were opened"
            else:
                num_bytes = writer.keep(self._fingerprint)
        except OSError as error:
            reason = str(error)
        if reason is not None:
            logger.warning("packed weights are not kept: %s", reason)
            return
        fields = {
            "path": self.cache.path,
            "mib": "kept by another process" if num_bytes is None else num_bytes >> 20,
            "seconds": f"{time.monotonic() - began:.2f}",
        }
        logger.info("packed weights kept", extra={"fields": fields})

    @staticmethod
    def _log_loaded(executor: Executor, message: str, **fields: object) -> None:
        logger.info(message, extra={"fields": {"weight_mib": executor.weight_bytes >> 20, **fields}})
