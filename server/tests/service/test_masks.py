"""Masks over the socket, and their names."""

from __future__ import annotations

import random

import grpc
import pytest
from tests.fakes.backend import VOCAB_SIZE
from tests.fakes.shard import Client, Stream
from tests.service.test_step import start
from trunkline_server._proto import shard_pb2 as pb
from trunkline_server.errors import PlanError
from trunkline_server.named_masks import MAX_MASK_ID, NamedMasks


def mask_of(*token_ids: int) -> bytes:
    bits = sum(1 << token_id for token_id in token_ids)
    return bits.to_bytes(VOCAB_SIZE // 8, "little")


def begin(stream: Stream) -> None:
    """Sends a step whose sample awaits its mask."""
    chunk = pb.Chunk(sequence_id=1, num_tokens=3, new_block_ids=[0], sample=True, awaits_mask=True)
    stream.send(pb.StepPlan(step_id=1, starts=[start(1, [1, 2, 3])], chunks=[chunk]))


def go_on(stream: Stream, step_id: int) -> None:
    chunk = pb.Chunk(sequence_id=1, first_position=step_id + 1, num_tokens=1, sample=True, awaits_mask=True)
    if chunk.first_position % 4 == 0:
        chunk.new_block_ids.append(chunk.first_position // 4)
    stream.send(pb.StepPlan(step_id=step_id, chunks=[chunk]))


def test_a_mask_is_reused_by_its_name(client: Client) -> None:
    stream = client.open()
    begin(stream)
    told = [
        (pb.LateMask(sequence_id=1, allowed_tokens=mask_of(40), mask_id=7), 40),
        (pb.LateMask(sequence_id=1, mask_id=7), 40),
        (pb.LateMask(sequence_id=1, allowed_tokens=mask_of(41)), 41),
        (pb.LateMask(sequence_id=1, allowed_tokens=mask_of(42), mask_id=MAX_MASK_ID), 42),
        (pb.LateMask(sequence_id=1, mask_id=7), 40),
        # Another mask takes the name.
        (pb.LateMask(sequence_id=1, allowed_tokens=mask_of(43), mask_id=7), 43),
        (pb.LateMask(sequence_id=1, mask_id=7), 43),
        (pb.LateMask(sequence_id=1, mask_id=MAX_MASK_ID), 42),
    ]
    for step_id, (late, token_id) in enumerate(told, start=1):
        if step_id > 1:
            go_on(stream, step_id)
        stream.tell(late)
        (sequence,) = stream.receive().sequences
        assert sequence.token.token_id == token_id, f"step {step_id}"


def test_sequences_share_a_mask_by_its_name(client: Client) -> None:
    stream = client.open()
    shared = {
        1: {"allowed_tokens": mask_of(40), "mask_id": 7},
        2: {"mask_id": 7},
        3: {"allowed_tokens": mask_of(41)},
        4: {},
    }
    starts = [start(sequence_id, [1, 2, 3], **fields) for sequence_id, fields in shared.items()]
    chunks = [pb.Chunk(sequence_id=i, num_tokens=3, new_block_ids=[i], sample=True) for i in shared]
    first, second, third, fourth = stream.step(pb.StepPlan(step_id=1, starts=starts, chunks=chunks)).sequences
    assert [one.token.token_id for one in (first, second, third)] == [40, 40, 41]
    assert fourth.token.token_id not in (40, 41)
    # Late masks and those of starts share their names. The late ones of a message come first.
    awaits = pb.Chunk(sequence_id=4, first_position=3, num_tokens=1, sample=True, awaits_mask=True)
    stream.send(pb.StepPlan(step_id=2, chunks=[awaits]))
    started = start(5, [1, 2, 3], mask_id=8)
    plan = pb.StepPlan(
        step_id=3, starts=[started], chunks=[pb.Chunk(sequence_id=5, num_tokens=3, new_block_ids=[9], sample=True)]
    )
    late = pb.LateMask(sequence_id=4, allowed_tokens=mask_of(42), mask_id=8)
    stream.send_raw(pb.StepRequest(plan=plan, late_masks=[late]))
    assert [stream.receive().sequences[0].token.token_id for _ in range(2)] == [42, 42]
    # A name without a mask is wrong for all, because the router's table is another one.
    stream.send(pb.StepPlan(step_id=4, starts=[start(6, [1], mask_id=9)]))
    assert stream.error().details() == "mask of sequence 6: mask 9 has not been sent"


@pytest.mark.parametrize(
    ("mask_id", "expected"),
    [
        (3, "mask of sequence 1: mask 3 has not been sent"),
        (MAX_MASK_ID + 1, f"mask of sequence 1: `mask_id` is {MAX_MASK_ID + 1}, expected at most {MAX_MASK_ID}"),
    ],
)
def test_an_invalid_name_ends_the_stream_and_the_waiting_step(client: Client, mask_id: int, expected: str) -> None:
    before = client.open()
    begin(before)
    before.tell(pb.LateMask(sequence_id=1, allowed_tokens=mask_of(5), mask_id=3))
    assert before.receive().sequences[0].token.token_id == 5

    # Names belong to one stream.
    stream = client.open()
    begin(stream)
    stream.tell(pb.LateMask(sequence_id=1, mask_id=mask_id))
    error = stream.error()
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == expected


@pytest.mark.parametrize("seed", range(5))
def test_a_name_refers_to_the_last_mask_sent_with_it(seed: int) -> None:
    chooser = random.Random(seed)
    names, told = NamedMasks(), dict[int, bytes]()
    for _ in range(2000):
        mask_id = chooser.randint(1, MAX_MASK_ID)
        if chooser.random() < 0.1:
            told[mask_id] = chooser.randbytes(8)
            late = pb.LateMask(sequence_id=1, allowed_tokens=told[mask_id], mask_id=mask_id)
        else:
            late = pb.LateMask(sequence_id=1, mask_id=mask_id)
        if mask_id in told:
            assert names.read(late, 1) == told[mask_id]
        else:
            with pytest.raises(PlanError, match=f"mask {mask_id} has not been sent"):
                names.read(late, 1)
    assert len(told) > MAX_MASK_ID // 2


def test_a_mask_without_a_name_does_not_change_names() -> None:
    names = NamedMasks()
    assert names.read(pb.LateMask(sequence_id=1, allowed_tokens=b"\x01", mask_id=1), 1) == b"\x01"
    assert names.read(pb.LateMask(sequence_id=1, allowed_tokens=b"\x02"), 1) == b"\x02"
    assert names.read(pb.LateMask(sequence_id=1), 1) == b""
    assert names.read(pb.LateMask(sequence_id=1, mask_id=1), 1) == b"\x01"
