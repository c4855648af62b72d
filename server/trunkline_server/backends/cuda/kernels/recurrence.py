"""Linear recurrences whose state is a matrix for each head: selective scans (arXiv:2405.21060) and the gated delta rule
(arXiv:2412.06464), and the step sizes and decays that drive them.

A program holds some rows of a head's state [P, N] in registers and goes through the positions of a chunk one by one.
Each row of the state is a sum of its own, so neither the division among programs nor cuts of a prompt change a bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from trunkline_server.backends.cuda.step_input import StepTensors
from trunkline_server.models.ops import Recurrence, RecurrenceOperands

# Elements of a state that a program holds: 16 for each of 128 threads.
_STATE_BLOCK = 2048
_BLOCK = 1024


@triton.jit
def _recurrence_kernel(
    value, key, query, decay, strength, skip, out, states, query_begin, state_source, kept_state,
    value_stride, key_stride, query_stride, decay_stride, strength_stride, out_stride, state_stride, state_offset,
    value_size, key_size, heads_per_key,
    IS_DELTA: tl.constexpr, HAS_SKIP: tl.constexpr, VALUES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Computes rows program_id(2) of the state of head program_id(1) for all rows of entry program_id(0)."""
    entry, head = tl.program_id(0), tl.program_id(1)
    p, n = tl.program_id(2) * VALUES + tl.arange(0, VALUES), tl.arange(0, KEYS)
    is_value, is_key = p < value_size, n < key_size
    mask = is_value[:, None] & is_key[None, :]
    begin, end = tl.load(query_begin + entry).to(tl.int64), tl.load(query_begin + entry + 1).to(tl.int64)
    source = tl.load(state_source + entry).to(tl.int64)
    states += state_offset + (head * value_size + p)[:, None] * key_size + n[None, :]
    # The beginning of a sequence has no state.
    is_kept = (n < tl.where(source < 0, 0, key_size))[None, :] & mask
    state = tl.load(states + source * state_stride, is_kept, other=0.0)
    # The state may be kept where it was read.
    tl.debug_barrier()
    shared = head // heads_per_key * key_size + n
    factor = tl.load(skip + head) if HAS_SKIP else 0.0
    for row in range(begin, end):
        keys = tl.load(key + row * key_stride + shared, is_key, other=0.0).to(tl.float32)
        queries = tl.load(query + row * query_stride + shared, is_key, other=0.0).to(tl.float32)
        values = tl.load(value + row * value_stride + head * value_size + p, is_value, other=0.0).to(tl.float32)
        state = state * tl.load(decay + row * decay_stride + head)
        taken = values
        if IS_DELTA:
            taken = values - tl.sum(state * keys[None, :], axis=1)
        taken = taken * tl.load(strength + row * strength_stride + head)
        state = state + taken[:, None] * keys[None, :]
        read = tl.sum(state * queries[None, :], axis=1)
        if HAS_SKIP:
            read += factor * values
        tl.store(out + row * out_stride + head * value_size + p, read, is_value)
        kept = tl.load(kept_state + row).to(tl.int64)
        if kept >= 0:
            tl.store(states + kept * state_stride, state, mask)


def recurrence(
    kind: Recurrence,
    operands: RecurrenceOperands[torch.Tensor],
    skip: torch.Tensor | None,
    num_heads: int,
    key_size: int,
    states: torch.Tensor,
    state_offset: int,
    step: StepTensors,
) -> torch.Tensor:
    """Computes what `RecurrentOps.recurrence` says.

    operands: rows contiguous, possibly parts of wider ones; decay and strength are f32. skip: [H] f32. states: [n,
    size] f32, where this layer's state [H, P, N] begins at `state_offset`. Returns [T, H * P] f32; rows of padding are
    not written.
    """
    (num_rows, width), num_entries = operands.value.shape, step.state_source.shape[0]
    value_size, block = width // num_heads, triton.next_power_of_2(key_size)
    values = min(triton.next_power_of_2(value_size), max(1, _STATE_BLOCK // block))
    out = torch.empty(num_rows, width, dtype=torch.float32, device=operands.value.device)
    rows = (operands.value, operands.key, operands.query, operands.decay, operands.strength)
    _recurrence_kernel[(num_entries, num_heads, triton.cdiv(value_size, values))](
        *rows, out if skip is None else skip, out, states, step.query_begin, step.state_source, step.kept_state,
        *(x.stride(0) for x in rows), out.stride(0), states.stride(0), state_offset, value_size, key_size,
        num_heads * key_size // operands.key.shape[1],
        IS_DELTA=kind == "delta", HAS_SKIP=skip is not None, VALUES=values, KEYS=block, num_warps=4,
        enable_fp_fusion=False,
    )  # fmt: skip
    return out


@triton.jit
def _step_kernel(x, parameters, out, x_stride, num_columns, IS_DECAY: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < num_columns
    values = tl.load(x + row * x_stride + columns, mask, other=0.0).to(tl.float32)
    parameter = tl.load(parameters + columns, mask, other=0.0)
    if IS_DECAY:
        result = tl.exp(-(values * tl.exp(parameter)))
    else:
        values += parameter
        small = tl.exp(-tl.abs(values))
        # log(1 + u) is u times the slope of the logarithm between 1 and the rounded 1 + u.
        rounded = 1.0 + small
        slope = tl.where(rounded == 1.0, 1.0, tl.log(rounded) / tl.where(rounded == 1.0, 1.0, rounded - 1.0))
        result = tl.where(values < 0.0, 0.0, values) + small * slope
    tl.store(out + row * num_columns + columns, result, mask)


def softplus(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """Computes log(1 + exp(x + bias)) of x [T, N], rows contiguous, and bias [N] f32. Returns [T, N] f32."""
    return _by_column(x, bias, is_decay=False)


def decay(x: torch.Tensor, log_rate: torch.Tensor) -> torch.Tensor:
    """Computes exp(-x * exp(log_rate)); otherwise as `softplus`."""
    return _by_column(x, log_rate, is_decay=True)


def _by_column(x: torch.Tensor, parameters: torch.Tensor, *, is_decay: bool) -> torch.Tensor:
    num_rows, width = x.shape
    out = torch.empty(num_rows, width, dtype=torch.float32, device=x.device)
    _step_kernel[(num_rows, triton.cdiv(width, _BLOCK))](
        x, parameters, out, x.stride(0), width, IS_DECAY=is_decay, BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=False
    )
    return out
