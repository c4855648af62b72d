"""Recurrent layers on the cuda backend: kernels and whole models beside the reference, and states in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import running
from tests.cuda.kv_oracle import random
from tests.cuda.test_backend import BLOCK_SIZE, PROMPT, WITH_LOGPROBS, build_cuda
from tests.models.tiny import TinyModels
from tests.plans import new_chunk, new_start
from tests.tiers import first
from trunkline_server._proto.shard_pb2 import SampledToken
from trunkline_server.backends.cuda.backend import CudaBackend
from trunkline_server.backends.cuda.kernels.recurrence import decay, recurrence, softplus
from trunkline_server.backends.cuda.kernels.short_conv import short_conv
from trunkline_server.backends.cuda.state_pool import StatePool, kept_blocks
from trunkline_server.backends.cuda.step_input import Entry, StepLayout, StepTensors, shape_of
from trunkline_server.backends.cuda.tier_build import TierOptions
from trunkline_server.backends.reference.backend import ReferenceBackend
from trunkline_server.backends.reference.kv_pool import KvPool
from trunkline_server.backends.reference.ops import ChunkRows, ReferenceOps, Step
from trunkline_server.backends.store_files import StoreOptions
from trunkline_server.errors import InvalidArgument, PlanError
from trunkline_server.models.ops import Recurrence, RecurrenceOperands
from trunkline_server.weights.checkpoint import open_checkpoint

LENGTH, NUM_PADDING = 45, 2
HEADS, VALUE_SIZE, KEY_SIZE = 4, 20, 24
Cuts = Sequence[tuple[int, int]]
# Positions of the sequence in the order of steps, in each of which it is beside another sequence.
IN_BLOCKS: Cuts = [(0, 16), (16, 32), (32, 45)]
AT_THE_BEGINNING: Cuts = [(0, 1), (1, 3), (3, 45)]
WITH_DECODES: Cuts = [(0, 5), (5, 30), (30, 31), (31, 32), (32, 33), (33, 45)]


def make_step(pool: StatePool, parts: Cuts, tables: Sequence[Sequence[int]], device: str) -> StepTensors:
    """Makes a step of a part of each sequence, with padding; the sequence's blocks are in its table."""
    entries = [
        Entry([0] * (end - begin), begin, table, [], pool.admit(begin, end - begin, table))
        for (begin, end), table in zip(parts, tables, strict=True)
    ]
    needed = shape_of(entries, len(entries))
    shape = replace(needed, num_rows=needed.num_rows + NUM_PADDING, num_entries=needed.num_entries + NUM_PADDING)
    layout = StepLayout(shape, max_blocks=4)
    words = torch.zeros(layout.num_words, dtype=torch.int32)
    layout.write(words.numpy(), entries, BLOCK_SIZE)
    return layout.tensors(words.to(device))


def reference_ops(weights: dict[str, torch.Tensor]) -> ReferenceOps:
    """Returns the operations of the reference on one sequence in one chunk."""
    pool = KvPool(num_layers=1, num_blocks=4, block_size=BLOCK_SIZE, num_kv_heads=1, head_size=2)
    positions = torch.arange(LENGTH)
    step = Step(positions, positions, [ChunkRows(0, LENGTH, 0, positions)], positions[-1:])
    return ReferenceOps(weights.__getitem__, pool, step)


def in_parts(run, state_size: int, cuts: Cuts, device: str) -> torch.Tensor:  # type: ignore[no-untyped-def]
    """Returns what `run(rows, states, step)` computes for the sequence, cut so, beside a sequence of one position."""
    pool = StatePool(num_states=8, state_size=state_size, block_size=BLOCK_SIZE, device=device)
    found = []
    for begin, end in cuts:
        rows = torch.cat([torch.tensor([7]), torch.arange(begin, end), torch.zeros(NUM_PADDING).long()]).to(device)
        step = make_step(pool, [(0, 1), (begin, end)], [[9], [0, 1, 2]], device)
        found.append(run(rows, pool.states, step)[1:-NUM_PADDING])
        pool.drop([9])
    return torch.cat(found)


@pytest.mark.parametrize(("width", "cuts"), [(2, IN_BLOCKS), (3, AT_THE_BEGINNING), (4, WITH_DECODES)])
def test_convolutions_do_not_depend_on_cuts(width: int, cuts: Cuts, device: str) -> None:
    channels, offset = 130, 4
    # Columns of wider rows.
    x = random(LENGTH, channels + 9).to(device)[:, 9:]
    weight, bias = random(channels * width, seed=1), random(channels, seed=2) if width == 3 else None
    ops = reference_ops({"taps": weight} | ({} if bias is None else {"bias": bias}))
    expected = ops.short_conv(x.cpu(), "taps", None if bias is None else "bias")
    taps, shift = weight.to(device), None if bias is None else bias.to(device)

    def run(rows: torch.Tensor, states: torch.Tensor, step: StepTensors) -> torch.Tensor:
        return short_conv(x[rows], taps, shift, states, offset, step)

    size = offset + (width - 1) * channels
    whole = in_parts(run, size, [(0, LENGTH)], device)
    torch.testing.assert_close(whole.cpu(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(in_parts(run, size, cuts, device), whole)


@pytest.mark.parametrize(("kind", "num_keys", "cuts"), [("scan", 1, WITH_DECODES), ("delta", 2, AT_THE_BEGINNING)])
def test_recurrences_do_not_depend_on_cuts(kind: Recurrence, num_keys: int, cuts: Cuts, device: str) -> None:
    value = random(LENGTH, HEADS * VALUE_SIZE)
    key, query = (random(LENGTH, num_keys * KEY_SIZE, seed=seed) / KEY_SIZE**0.5 for seed in (1, 2))
    strength = torch.sigmoid(random(LENGTH, HEADS, seed=3))
    decays = torch.exp(-0.3 * torch.sigmoid(random(LENGTH, HEADS, seed=4)))
    skip = random(HEADS, seed=5) if kind == "scan" else None
    operands = RecurrenceOperands(
        value=value, key=key, query=query, decay=decays, strength=strength, skip=None if skip is None else "skip"
    )
    expected = reference_ops({} if skip is None else {"skip": skip}).recurrence(kind, operands, HEADS, KEY_SIZE)

    def run(rows: torch.Tensor, states: torch.Tensor, step: StepTensors) -> torch.Tensor:
        parts = [x[rows.cpu()].to(device) for x in (value, key, query, decays, strength)]
        chosen = RecurrenceOperands(value=parts[0], key=parts[1], query=parts[2], decay=parts[3], strength=parts[4])
        factors = None if skip is None else skip.to(device)
        return recurrence(kind, chosen, factors, HEADS, KEY_SIZE, states, 8, step)

    size = 8 + HEADS * VALUE_SIZE * KEY_SIZE
    whole = in_parts(run, size, [(0, LENGTH)], device)
    torch.testing.assert_close(whole.cpu(), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(in_parts(run, size, cuts, device), whole)


def test_steps_and_decays_match_torch(device: str) -> None:
    x = torch.tensor([-90.0, -20.0, -3.0, -1e-4, 0.0, 0.7, 30.0, 200.0]).repeat(3, 1)
    parameters = torch.linspace(-2.0, 2.0, 8)
    found = softplus(x.to(device), parameters.to(device)).cpu()
    torch.testing.assert_close(found, torch.log1p(torch.exp(x.double() + parameters)).float(), rtol=2e-6, atol=0.0)
    found = decay(found.to(device), parameters.to(device)).cpu()
    expected = torch.exp(-torch.log1p(torch.exp(x.double() + parameters)) * torch.exp(parameters.double()))
    torch.testing.assert_close(found, expected.float(), rtol=2e-4, atol=1e-30)


def test_states_are_kept_by_the_last_two_blocks_and_by_a_first_one_that_has_one() -> None:
    assert kept_blocks(0, 3, 4) == [0]
    assert kept_blocks(0, 8, 4) == [0, 1]
    assert kept_blocks(0, 17, 4) == [3, 4]
    assert kept_blocks(5, 30, 4) == [1, 6, 7]
    assert kept_blocks(7, 8, 4) == [1]


def test_blocks_give_their_states_back() -> None:
    pool = StatePool(num_states=3, state_size=2, block_size=4, device="cpu")
    first = pool.admit(0, 8, [5, 6])
    assert (first.source, [row for row, _ in first.kept]) == (-1, [3, 7])
    then = pool.admit(8, 1, [5, 6, 7])
    assert then.source == first.kept[1][1]
    with pytest.raises(PlanError, match="block 8 needs a window part, but all 3 are in use"):
        pool.admit(0, 1, [8])
    pool.states[then.source] = 3.0
    pool.drop([5, 9])
    pool.copy(6, 9, 4)
    assert pool.states[pool.admit(4, 1, [9, 7]).source].tolist() == [3.0, 3.0]
    with pytest.raises(PlanError, match="cannot copy 3 tokens"):
        pool.copy(6, 8, 3)
    pool.drop_all()
    assert pool.num_free == 3


CASES = ["lfm2", "lfm2_moe", "granitemoehybrid", "qwen3_next"]


def sampled(
    backend: CudaBackend, ends: list[int], first: int = 0, blocks: Sequence[int] = (0, 1)
) -> list[SampledToken]:
    """Computes a prompt from `first` on in chunks with these ends, then a token."""
    backend.start(new_start(1, PROMPT, len(PROMPT), WITH_LOGPROBS))
    output: list[SampledToken] = []
    for end in [*ends, 25]:
        output += running.all_sampled(backend.step([new_chunk(1, first, end - first, blocks, sample=end >= 24)]))
        first, blocks = end, []
    backend.end(1)
    return output


@pytest.mark.parametrize("case", first(CASES, "lfm2"))
def test_hits_and_copies_of_states_change_no_bit(case: str, tiny_model: TinyModels, device: str) -> None:
    checkpoint = open_checkpoint(tiny_model(case).folder)
    backend = build_cuda(checkpoint, device)
    assert (backend.info.recurrent, backend.info.window_size, backend.info.max_draft_tokens) == (True, 2, 0)
    assert backend.info.bytes_per_window_part == 4 * checkpoint.config.state_size
    cold = sampled(backend, [16, 24])
    assert sampled(backend, [24], first=16) == cold
    backend.copy_block(0, 20, BLOCK_SIZE)
    backend.drop_window_parts([0])
    assert sampled(backend, [24], first=16, blocks=[20, 22]) == cold
    # A chunk without its state fails alone.
    for sequence_id in (2, 3):
        backend.start(new_start(sequence_id, PROMPT, len(PROMPT), WITH_LOGPROBS))
    chunks = [new_chunk(2, 16, 8, [0, 5], True), new_chunk(3, 16, 8, [20, 22], True)]
    failed, beside = backend.step(chunks).sequences
    assert running.error_of(failed).message == "block 0 has no window part, but position 16 needs it"
    assert (beside.sequence_id, beside.token) == (3, cold[0])
    # A new router knows of no states.
    backend.reset()
    backend.start(new_start(2, PROMPT, len(PROMPT), WITH_LOGPROBS))
    (failed,) = backend.step([new_chunk(2, 16, 8, [20, 22], True)]).sequences
    assert failed.HasField("error")


def test_what_states_do_not_allow_is_refused_by_name(tiny_model: TinyModels, device: str, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_model("lfm2").folder)
    with pytest.raises(InvalidArgument, match="states are not kept on disk"):
        build_cuda(checkpoint, device, tiers=TierOptions(disk=StoreOptions(path=tmp_path, max_bytes=1 << 24)))
    with pytest.raises(InvalidArgument, match="states are not kept in host memory"):
        build_cuda(checkpoint, device, tiers=TierOptions(host_bytes=1 << 24))


@pytest.mark.full
def test_keys_are_scaled_beside_states(tiny_model: TinyModels, device: str) -> None:
    checkpoint = open_checkpoint(tiny_model("lfm2").folder)
    found = build_cuda(checkpoint, device, kv_cache_dtype="int4").score(PROMPT[:8])
    assert np.abs(found - ReferenceBackend(checkpoint).score(PROMPT[:8])).mean() < 0.2
