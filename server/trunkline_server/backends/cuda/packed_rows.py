"""Sends arrays of different sizes to the device in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch

from trunkline_server.backends.cuda.device import Device
from trunkline_server.backends.cuda.step_input import ALIGNMENT_WORDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MIN_WORDS = 1 << 12
# torch's dtypes for numpy's; unsigned numbers keep their bits.
_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.uint32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.uint64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


class PackedRows:
    """Two alternating pinned buffers and one on the device, which grow as steps need more."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._host = [device.pinned(_MIN_WORDS) for _ in range(2)]
        self._on_device = torch.zeros(_MIN_WORDS, dtype=torch.int32, device=device.torch_device)
        self._turn = 0

    def upload(self, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, torch.Tensor]:
        """Copies arrays to the device; returns them by name, valid until the next call.

        A third call may only follow when the first call's copy is done.
        """
        places, end = {}, 0
        for name, array in arrays.items():
            places[name] = end
            end += -(-array.nbytes // (4 * ALIGNMENT_WORDS)) * ALIGNMENT_WORDS
        self._turn = 1 - self._turn
        if self._host[self._turn].numel() < end:
            self._host[self._turn] = self._device.pinned(2 * end)
        host = self._host[self._turn]
        words = host.numpy()
        for name, array in arrays.items():
            begin = places[name]
            words[begin : begin + array.nbytes // 4] = array.reshape(-1).view(np.int32)
        if self._on_device.numel() < end:
            # Work that still reads the old buffer is safe, since the allocator reuses memory in the order of the
            # stream.
            self._on_device = torch.zeros(2 * end, dtype=torch.int32, device=self._device.torch_device)
        if end:
            self._device.copy(host[:end], self._on_device[:end])
        return {
            name: self._on_device[places[name] : places[name] + array.nbytes // 4].view(_DTYPES[array.dtype])
            for name, array in arrays.items()
        }
