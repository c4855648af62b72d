"""All numbers of e4m3, as kernels convert them from their codes."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl
from trunkline_server.backends.cuda.kernels.numerics import e4m3_by_bits, from_e4m3


@triton.jit
def _convert_kernel(codes, out, BY_BITS: tl.constexpr):
    at = tl.arange(0, 256)
    numbers = tl.load(codes + at)
    tl.store(out + at, e4m3_by_bits(numbers) if BY_BITS else from_e4m3(numbers, tl.float32))


@pytest.mark.parametrize("by_bits", [True, False])
def test_every_code_converts_as_in_torch(device: str, by_bits: bool) -> None:
    codes = torch.arange(256, dtype=torch.uint8, device=device)
    out = torch.empty(256, dtype=torch.float32, device=device)
    _convert_kernel[(1,)](codes, out, BY_BITS=by_bits)
    expected = codes.view(torch.float8_e4m3fn).float()
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(7.0).view(torch.int32), expected.nan_to_num(7.0).view(torch.int32))
