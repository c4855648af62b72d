"""The measurement of the KV tiers runs and detects wrong bytes."""

from __future__ import annotations

import pytest
from gpu.tiers import bus_rates, measure
from trunkline_server.backends.cuda.copies import CopyIn
from trunkline_server.backends.cuda.device import CudaDevice, Device


def test_rates_are_measured_and_bytes_compared(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    made = CudaDevice() if device == "cuda" else Device()
    assert all(rate > 0 for rate in bus_rates(made, 1 << 16).values())
    figures = measure(made, "tiny", 70, block_size=16)
    assert figures["tokens"] == 64
    assert all(value > 0 for value in figures.values())
    unpack = CopyIn._unpack
    monkeypatch.setattr(CopyIn, "_unpack", lambda self, batch, group, packed: unpack(self, batch[::-1], group, packed))
    with pytest.raises(AssertionError, match="a block has changed"):
        measure(made, "tiny", 70, block_size=16)
