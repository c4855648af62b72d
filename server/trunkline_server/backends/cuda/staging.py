"""Copies bytes of a mapped file to the device, at the speed of the slower of disk and bus."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from numpy.typing import NDArray

# Size of one pinned buffer. Each thread has two: one is filled from the file while the other is copied to the device.
STAGING_BYTES = 16 << 20
_NUM_BUFFERS = 2


class Staging:
    """One thread's path to the device: two pinned buffers and a stream. On the CPU, plain copies."""

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._next = 0
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            self._buffers = [
                torch.empty(STAGING_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(_NUM_BUFFERS)
            ]
            self._is_free = [torch.cuda.Event() for _ in range(_NUM_BUFFERS)]  # type: ignore[no-untyped-call]

    def on_stream(self) -> AbstractContextManager[object]:
        """Returns a context whose work is done after the copies that began before it."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def copy(self, source: memoryview | NDArray[np.uint8], destination: torch.Tensor) -> None:
        """Begins to copy source into destination [bytes] u8; `on_stream` and `wait` are ordered after it."""
        assert destination.dtype == torch.uint8 and destination.nbytes == source.nbytes
        read = np.frombuffer(source, dtype=np.uint8)
        for begin in range(0, read.nbytes, STAGING_BYTES):
            piece = read[begin : begin + STAGING_BYTES]
            self._copy_piece(piece, destination[begin : begin + piece.nbytes])

    def _copy_piece(self, piece: NDArray[np.uint8], destination: torch.Tensor) -> None:
        if self._stream is None:
            np.copyto(destination.numpy(), piece)
            return
        index = self._next
        self._next = (index + 1) % _NUM_BUFFERS
        self._is_free[index].synchronize()
        buffer = self._buffers[index][: piece.nbytes]
        np.copyto(buffer.numpy(), piece)
        with torch.cuda.stream(self._stream):
            destination.copy_(buffer, non_blocking=True)
            self._is_free[index].record(self._stream)

    def wait(self) -> None:
        """Waits until everything that has begun is on the device."""
        if self._stream is not None:
            self._stream.synchronize()
