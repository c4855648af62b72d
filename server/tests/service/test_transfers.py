"""Transfers through the socket: their limits, and when their outcomes arrive."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc
import pytest
from tests.fakes.backend import VOCAB_SIZE, FakeBackend
from tests.fakes.shard import Client, serve
from tests.fakes.store import FakeStore, block_key
from trunkline_server._proto import shard_pb2 as pb
from trunkline_server.backends.interface import sampling_params

ROOT_KEY = b"0123456789abcdef"
PROMPT = [1, 2, 3, 4, 5]
KEY = block_key(ROOT_KEY, PROMPT[:4], 4)


@pytest.fixture
def backend() -> FakeBackend:
    return FakeBackend(has_store=True)


@pytest.fixture
def store(backend: FakeBackend) -> FakeStore:
    assert backend.fake_store is not None
    return backend.fake_store


def first_plan(slot: int = 2) -> pb.StepPlan:
    """Computes a whole block and one token, and stores the block."""
    start = pb.SequenceStart(
        sequence_id=1, token_ids=PROMPT, num_prompt_tokens=5, sampling=sampling_params(), root_key=ROOT_KEY
    )
    stores = [pb.BlockStore(block_index=0, slot=slot)]
    chunk = pb.Chunk(sequence_id=1, num_tokens=5, new_block_ids=[0, 1], sample=True, stores=stores)
    return pb.StepPlan(step_id=1, starts=[start], chunks=[chunk])


def restore_plan(step_id: int, *slots: int, key: bytes = KEY) -> pb.StepPlan:
    blocks = [pb.BlockRestore(slot=slot, block_id=8 + i, key=key) for i, slot in enumerate(slots)]
    return pb.StepPlan(step_id=step_id, restores=[pb.Restore(restore_id=7, blocks=blocks)])


def test_describe_reports_the_store(client: Client) -> None:
    described = client.describe()
    assert (described.num_store_slots, described.store_folder) == (4, "/store/fa4e")


def test_the_contents_of_the_store_come_in_pieces(client: Client) -> None:
    stream = client.open()
    for step_id, slot in enumerate((3, 0, 2), start=1):
        plan = first_plan(slot)
        plan.step_id = plan.starts[0].sequence_id = plan.chunks[0].sequence_id = step_id
        stream.step(plan)
    pieces = client.store_contents()
    assert [list(piece.slots) for piece in pieces] == [[0, 2], [3]]
    assert [piece.keys for piece in pieces] == [KEY * 2, KEY]
    assert [(list(piece.depths), list(piece.sequences)) for piece in pieces] == [([0, 0], [0, 2]), ([0], [3])]


def test_a_store_that_cannot_be_read_is_data_loss(client: Client, store: FakeStore) -> None:
    store.fails = True
    with pytest.raises(grpc.RpcError, match="the disk is on fire") as raised:
        client.store_contents()
    assert raised.value.code() == grpc.StatusCode.DATA_LOSS


def test_a_step_and_its_stores_are_one_response(client: Client) -> None:
    stream = client.open()
    stream.send(first_plan())
    response = stream.response()
    assert response.result.step_id == 1
    assert list(response.transfers.stores) == [pb.StoreOutcome(slot=2, is_stored=True)]


def test_slow_stores_are_reported_when_they_end_while_no_step_runs(client: Client, store: FakeStore) -> None:
    store.is_slow = True
    stream = client.open()
    stream.send(first_plan())
    assert not stream.response().HasField("transfers")
    store.end_slow_stores()
    response = stream.response()
    assert not response.HasField("result")
    assert [outcome.slot for outcome in response.transfers.stores] == [2]


def test_a_restored_block_is_the_one_that_was_stored(client: Client) -> None:
    stream = client.open()
    token = stream.step(first_plan()).sequences[0].token
    stream.send(restore_plan(2, 2, 3))
    restored = stream.response().transfers.restores
    assert [(outcome.restore_id, outcome.num_blocks) for outcome in restored] == [(7, 1)]
    again = pb.SequenceStart(sequence_id=2, token_ids=PROMPT, num_prompt_tokens=5, sampling=sampling_params())
    chunk = pb.Chunk(sequence_id=2, first_position=4, num_tokens=1, new_block_ids=[8, 3], sample=True)
    result = stream.step(pb.StepPlan(step_id=3, starts=[again], chunks=[chunk]))
    assert result.sequences[0].token == token


def test_discarded_slots_hold_nothing(client: Client) -> None:
    stream = client.open()
    stream.step(first_plan())
    plan = restore_plan(2, 2)
    plan.discards.append(3)
    stream.send(plan)
    assert stream.response().transfers.restores[0].num_blocks == 1
    stream.step(pb.StepPlan(step_id=3, discards=[2]))
    stream.send(restore_plan(4, 2))
    assert stream.response().transfers.restores[0].num_blocks == 0


def test_a_failed_chunk_stores_nothing_and_its_outcome_says_so(client: Client, store: FakeStore) -> None:
    plan = first_plan()
    plan.starts[0].token_ids[4] = 63
    stream = client.open()
    stream.send(plan)
    response = stream.response()
    assert response.result.sequences[0].HasField("error")
    assert list(response.transfers.stores) == [pb.StoreOutcome(slot=2, is_stored=False)]
    assert store.slots == {}


def test_chunks_that_never_reach_the_backend_have_outcomes_with_their_own_result(client: Client) -> None:
    refused = first_plan()
    refused.starts[0].token_ids[4] = VOCAB_SIZE
    stream = client.open()
    stream.send(refused)
    response = stream.response()
    assert response.result.sequences[0].HasField("error")
    assert list(response.transfers.stores) == [pb.StoreOutcome(slot=2, is_stored=False)]
    # The first sequence was never started; it runs beside another one.
    both = first_plan(slot=3)
    both.step_id, both.starts[0].sequence_id, both.chunks[0].sequence_id = 2, 2, 2
    unknown = pb.Chunk(sequence_id=9, num_tokens=4, new_block_ids=[4], stores=[pb.BlockStore(block_index=0, slot=1)])
    both.chunks.append(unknown)
    stream.send(both)
    response = stream.response()
    outcomes = {outcome.slot: outcome.is_stored for outcome in response.transfers.stores}
    assert (response.result.step_id, outcomes) == (2, {3: True, 1: False})


def test_a_new_stream_gets_no_outcomes_of_the_old_one(client: Client, store: FakeStore) -> None:
    store.is_slow = True
    first = client.open()
    first.step(first_plan())
    second = client.open()
    assert first.error().code() == grpc.StatusCode.ABORTED
    second.step(pb.StepPlan(step_id=1))
    store.end_slow_stores()
    second.send(pb.StepPlan(step_id=2))
    response = second.response()
    assert (response.result.step_id, response.HasField("transfers")) == (2, False)


def changed(change: Callable[[pb.StepPlan], object]) -> pb.StepPlan:
    plan = first_plan()
    change(plan)
    return plan


BAD_PLANS = {
    "slot": (first_plan(slot=4), "names slot 4, but the store has 4"),
    "discarded slot": (pb.StepPlan(step_id=1, discards=[9]), "names slot 9, but the store has 4"),
    "restored slot": (restore_plan(1, 5), "names slot 5, but the store has 4"),
    "block not full": (
        changed(lambda plan: plan.chunks[0].stores.add(block_index=1, slot=1)),
        "stores block 1 of sequence 1, but only 1 of its blocks are full",
    ),
    "slot twice": (
        changed(lambda plan: plan.chunks[0].stores.add(block_index=0, slot=2)),
        "names one slot in two transfers",
    ),
    "slot stored and discarded": (changed(lambda plan: plan.discards.append(2)), "names one slot in two transfers"),
    "slot read and emptied": (
        pb.StepPlan(step_id=1, restores=restore_plan(1, 2).restores, discards=[2]),
        "names one slot in two transfers",
    ),
    "key": (restore_plan(1, 2, key=b"short"), "restore 7 has a key of 5 bytes, expected 16"),
    "no blocks": (pb.StepPlan(step_id=1, restores=[pb.Restore(restore_id=7)]), "restore 7 has no blocks"),
    "block": (
        pb.StepPlan(
            step_id=1,
            restores=[pb.Restore(restore_id=7, blocks=[pb.BlockRestore(slot=0, block_id=16, key=KEY)])],
        ),
        "restore 7 writes block 16, but the pool has 16 blocks",
    ),
    "store of another shard": (
        pb.StepPlan(
            step_id=1,
            restores=[
                pb.Restore(
                    restore_id=7, blocks=[pb.BlockRestore(slot=0, block_id=3, key=KEY)], store_folder="/elsewhere"
                )
            ],
        ),
        "restore 7 names a store of another shard, which this one does not read",
    ),
    "block twice": (
        pb.StepPlan(
            step_id=1,
            restores=[pb.Restore(restore_id=7, blocks=[pb.BlockRestore(slot=s, block_id=3, key=KEY) for s in (0, 1)])],
        ),
        "restores two blocks onto one",
    ),
}


@pytest.mark.parametrize("case", BAD_PLANS)
def test_invalid_transfers_end_the_stream(client: Client, store: FakeStore, case: str) -> None:
    plan, message = BAD_PLANS[case]
    stream = client.open()
    stream.send(plan)
    error = stream.error()
    assert error.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert message in error.details()
    assert store.slots == {}


def test_transfers_need_a_store(socket_folder: Path) -> None:
    with serve(FakeBackend(), socket_folder / "shard.sock") as shard, Client(shard.socket_path) as client:
        for plan in (first_plan(), restore_plan(1, 0), pb.StepPlan(step_id=1, discards=[0])):
            stream = client.open()
            stream.send(plan)
            assert "but the store has 0" in stream.error().details()
