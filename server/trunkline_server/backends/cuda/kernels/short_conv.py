"""Causal depthwise convolutions over a few positions, whose state is the inputs of the positions before."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.step_input import StepTensors

MAX_WIDTH = 4
_CHANNELS = 128
# Rows of a tile if some chunk has several. At least `MAX_WIDTH`: a tile reads the state before it may be written.
_ROWS = 8


@triton.jit
def _input(
    x, states, rows, begin, source, channels, mask, LAG: tl.constexpr, x_stride, num_channels, WIDTH: tl.constexpr
):
    """Returns the inputs `LAG` positions before `rows`, [ROWS, CHANNELS]; those before row `begin` are in the state."""
    at = rows - LAG
    is_inside = (at >= begin)[:, None] & mask
    inputs = tl.load(x + at[:, None] * x_stride + channels[None, :], is_inside, other=0.0).to(tl.float32)
    if LAG > 0:
        place = WIDTH - 1 + at - begin
        # The beginning of a sequence has no state.
        is_before = (at < tl.where(source < 0, -WIDTH, begin))[:, None] & mask
        pointers = states + place[:, None] * num_channels + channels[None, :]
        inputs += tl.load(pointers, is_before, other=0.0)
    return inputs


@triton.jit
def _keep(states, inputs, kept, channels, mask, LAG: tl.constexpr, state_stride, num_channels, WIDTH: tl.constexpr):
    """Stores the inputs `LAG` positions before rows whose state is kept."""
    pointers = states + kept[:, None] * state_stride + (WIDTH - 2 - LAG) * num_channels + channels[None, :]
    tl.store(pointers, inputs, (kept >= 0)[:, None] & mask)


@triton.jit
def _short_conv_kernel(
    x, weight, bias, out, states, query_begin, state_source, kept_state,
    x_stride, out_stride, state_stride, state_offset, num_channels,
    HAS_BIAS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """Computes some channels of all rows of entry program_id(0)."""
    entry = tl.program_id(0)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    is_channel = channels < num_channels
    begin, end = tl.load(query_begin + entry).to(tl.int64), tl.load(query_begin + entry + 1).to(tl.int64)
    source = tl.load(state_source + entry).to(tl.int64)
    states += state_offset
    taps = weight + channels * WIDTH + WIDTH - 1
    first_sum = tl.zeros([CHANNELS], tl.float32)
    if HAS_BIAS:
        first_sum = tl.load(bias + channels, is_channel, other=0.0)
    for first in range(begin, end, ROWS):
        rows = first + tl.arange(0, ROWS)
        mask = (rows < end)[:, None] & is_channel[None, :]
        before = states + source * state_stride
        inputs = _input(x, before, rows, begin, source, channels, mask, 0, x_stride, num_channels, WIDTH)
        inputs1 = _input(x, before, rows, begin, source, channels, mask, 1, x_stride, num_channels, WIDTH)
        sums = first_sum[None, :] + tl.zeros([ROWS, CHANNELS], tl.float32)
        # The oldest input is added first.
        if WIDTH > 2:
            inputs2 = _input(x, before, rows, begin, source, channels, mask, 2, x_stride, num_channels, WIDTH)
            if WIDTH > 3:
                inputs3 = _input(x, before, rows, begin, source, channels, mask, 3, x_stride, num_channels, WIDTH)
                sums += inputs3 * tl.load(taps - 3, is_channel, other=0.0)[None, :]
            sums += inputs2 * tl.load(taps - 2, is_channel, other=0.0)[None, :]
        sums += inputs1 * tl.load(taps - 1, is_channel, other=0.0)[None, :]
        sums += inputs * tl.load(taps, is_channel, other=0.0)[None, :]
        tl.store(out + rows[:, None] * out_stride + channels[None, :], sums, mask)
        kept = tl.load(kept_state + rows, rows < end, other=-1).to(tl.int64)
        # The state may be kept where it was read.
        tl.debug_barrier()
        _keep(states, inputs, kept, channels, mask, 0, state_stride, num_channels, WIDTH)
        if WIDTH > 2:
            _keep(states, inputs1, kept, channels, mask, 1, state_stride, num_channels, WIDTH)
            if WIDTH > 3:
                _keep(states, inputs2, kept, channels, mask, 2, state_stride, num_channels, WIDTH)


def short_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    states: torch.Tensor,
    state_offset: int,
    step: StepTensors,
) -> torch.Tensor:
    """Convolves each channel over the last positions of its sequence, as `RecurrentOps.short_conv` says.

    x: [T, C], rows contiguous, possibly part of wider ones; weight: [C * width], bias: [C], f32. states: [n, size] f32,
    where this layer's state [width - 1, C] begins at `state_offset`, the oldest input first. Returns [T, C] f32; rows
    of padding are not written. Cost: each input is read up to `width` times, from L1 but for the first.
    """
    (num_rows, num_channels), num_entries = x.shape, step.state_source.shape[0]
    width = len(weight) // num_channels
    assert 2 <= width <= MAX_WIDTH, f"a convolution over {width} positions"
    out = torch.empty(num_rows, num_channels, dtype=torch.float32, device=x.device)
    _short_conv_kernel[(num_entries, triton.cdiv(num_channels, _CHANNELS))](
        x, weight, weight if bias is None else bias, out, states, step.query_begin, step.state_source, step.kept_state,
        x.stride(0), out.stride(0), states.stride(0), state_offset, num_channels,
        HAS_BIAS=bias is not None, WIDTH=width, ROWS=1 if step.shape.is_decode else _ROWS, CHANNELS=_CHANNELS,
        num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return out
