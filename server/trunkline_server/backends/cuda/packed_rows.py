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

# torch's dtypes for numpy's; unsigned numbers keep their bits.
_DTYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.uint32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.uint64): torch.int64,
    np.dtype(np.float32): torch.float32,
    np.dtype(np.float64): torch.float64,
}


def send_arrays(device: Device, arrays: Mapping[str, NDArray[np.generic]]) -> dict[str, torch.Tensor]:
    """Copies arrays to the device; returns them by name. Does not wait."""
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = slice(end, end + array.nbytes // 4)
        end += -(-array.nbytes // (4 * ALIGNMENT_WORDS)) * ALIGNMENT_WORDS
    words = np.zeros(end, dtype=np.int32)
    for name, array in arrays.items():
        words[places[name]] = array.reshape(-1).view(np.int32)
    on_device = device.send(words)
    return {name: on_device[places[name]].view(_DTYPES[array.dtype]) for name, array in arrays.items()}
