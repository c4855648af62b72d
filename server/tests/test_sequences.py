"""Limits of steps and sequences. A refused chunk changes nothing."""

from __future__ import annotations

import pytest
from trunkline_server._proto.shard_pb2 import Chunk
from trunkline_server.backends.interface import BackendInfo, sampling_params
from trunkline_server.backends.sequences import RunningSequence, SequenceTable, StepChunks
from trunkline_server.errors import InvalidArgument

from tests.plans import changed, new_chunk

VOCAB_SIZE = 20
INFO = BackendInfo(
    device="none",
    block_size=4,
    bytes_per_block=1,
    num_device_blocks=8,
    max_step_tokens=10,
    max_step_sequences=2,
    kv_dtype="f32",
    weight_bytes=0,
    numeric_fingerprint="",
)
CHUNK = new_chunk(1, 0, 6, [0, 1], sample=True)


def table_of(*sequence_ids: int, num_tokens: int = 6) -> SequenceTable[RunningSequence]:
    table: SequenceTable[RunningSequence] = SequenceTable(INFO, VOCAB_SIZE)
    for sequence_id in sequence_ids:
        table.start(sequence_id, RunningSequence(list(range(num_tokens)), num_tokens - 1, sampling_params()))
    return table


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [
        (changed(CHUNK, sequence_id=2), "not started"),
        (changed(CHUNK, num_tokens=0), "no tokens"),
        (changed(CHUNK, num_tokens=7), "ends at position 7, but 6"),
        (changed(CHUNK, num_tokens=5), "samples after position 4, but 6"),
        (changed(CHUNK, new_block_ids=[0, 8]), "not below 8"),
        (changed(CHUNK, new_block_ids=[0]), "1 blocks of 4 positions cannot hold 6"),
        (changed(CHUNK, allowed_tokens=bytes(2)), "2 bytes, expected 3"),
        (changed(CHUNK, num_tokens=11), "has 11 tokens, but the limit is 10"),
        (changed(CHUNK, score=True), "logits of 5 positions, but the limit is 4"),
        (changed(CHUNK, draft_token_ids=[VOCAB_SIZE]), "the draft 20 is not below 20"),
        (changed(CHUNK, draft_token_ids=[0] * 3), "cannot hold 9 tokens"),
        (changed(CHUNK, draft_token_ids=[0], allowed_tokens=bytes(3)), "0 `draft_masks`, expected 1"),
        (changed(CHUNK, draft_token_ids=[0], awaits_mask=True), "with a late mask"),
    ],
)
def test_a_chunk_that_cannot_be_computed_changes_nothing(chunk: Chunk, problem: str) -> None:
    table = table_of(1)
    taken = StepChunks(table, max_rows=4)
    message = taken.take(chunk)
    assert message is not None
    assert problem in message
    assert (taken.num_tokens, taken.num_rows, table[1].block_ids) == (0, 0, [])
    # A refused chunk does not count, so the right one is taken.
    assert taken.take(CHUNK) is None
    assert (taken.num_tokens, taken.num_rows, table[1].block_ids) == (6, 1, [0, 1])


def test_a_step_has_limits_of_chunks_and_tokens_and_one_chunk_per_sequence() -> None:
    table = table_of(1, 2, 3)
    taken = StepChunks(table)
    assert taken.take(changed(CHUNK, num_tokens=5, sample=False, score=True)) is None
    # The prompt's last token has no next token to score.
    assert (taken.num_tokens, taken.num_rows) == (5, 4)
    for chunk, problem in (
        (changed(CHUNK, first_position=5, num_tokens=1), "two chunks in one step"),
        (changed(CHUNK, sequence_id=2, new_block_ids=[2, 3]), "11 tokens, but the limit is 10"),
    ):
        message = taken.take(chunk)
        assert message is not None
        assert problem in message
    assert taken.take(changed(CHUNK, sequence_id=2, num_tokens=1, sample=False)) is None
    message = taken.take(changed(CHUNK, sequence_id=3, num_tokens=1, sample=False))
    assert message is not None
    assert "more than 2 chunks" in message


def test_a_gap_before_the_chunk_is_refused() -> None:
    table = table_of(1)
    table[1].num_computed = 3
    assert table.problem(changed(CHUNK, first_position=3, num_tokens=3)) is None
    assert table.problem(changed(CHUNK, first_position=2, num_tokens=4)) is None
    message = table.problem(changed(CHUNK, first_position=4, num_tokens=2))
    assert message is not None
    assert "begins at position 4, but 3 are computed" in message


def test_appended_tokens_of_an_unknown_sequence_are_ignored() -> None:
    table = table_of(1)
    table.append(2, [5])
    table.append(1, [7, 8])
    assert (table[1].token_ids[-2:], table[1].num_tokens) == ([7, 8], 8)


@pytest.mark.parametrize("num_tokens", [0, 33])
def test_a_text_that_exceeds_the_pool_is_not_scored(num_tokens: int) -> None:
    table = table_of()
    table.check_score(32)
    with pytest.raises(InvalidArgument, match=f"cannot score {num_tokens} tokens, but the pool holds 32"):
        table.check_score(num_tokens)


def test_scoring_is_refused_while_sequences_are_started() -> None:
    with pytest.raises(InvalidArgument, match="while 1 sequences are started"):
        table_of(1).check_score(1)
