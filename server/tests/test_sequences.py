"""What a step may ask of the sequences: its limits, those of a sequence; what is refused changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from trunkline_server.backends.interface import BackendInfo, Chunk, SamplingParams
from trunkline_server.backends.sequences import RunningSequence, SequenceTable, StepChunks
from trunkline_server.errors import InvalidArgument

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
CHUNK = Chunk(1, 0, 6, [0, 1], sample=True)


def table_of(*sequence_ids: int, num_tokens: int = 6) -> SequenceTable[RunningSequence]:
    table: SequenceTable[RunningSequence] = SequenceTable(INFO, VOCAB_SIZE)
    for sequence_id in sequence_ids:
        table.start(sequence_id, RunningSequence(list(range(num_tokens)), num_tokens - 1, SamplingParams()))
    return table


@pytest.mark.parametrize(
    ("chunk", "problem"),
    [
        (replace(CHUNK, sequence_id=2), "not started"),
        (replace(CHUNK, num_tokens=0), "no tokens"),
        (replace(CHUNK, first_position=-1), "ends at position 5"),
        (replace(CHUNK, num_tokens=7), "ends at position 7, but 6"),
        (replace(CHUNK, num_tokens=5), "samples after position 4, but 6"),
        (replace(CHUNK, new_block_ids=[0, 8]), "not below 8"),
        (replace(CHUNK, new_block_ids=[0, -1]), "not below 8"),
        (replace(CHUNK, new_block_ids=[0]), "1 blocks of 4 positions cannot hold 6"),
        (replace(CHUNK, allowed_tokens=bytes(2)), "2 bytes, expected 3"),
        (replace(CHUNK, num_tokens=11), "has 11 tokens, but the limit is 10"),
        (replace(CHUNK, score=True), "logits of 5 positions, but the limit is 4"),
    ],
)
def test_a_chunk_that_cannot_be_computed_changes_nothing(chunk: Chunk, problem: str) -> None:
    table = table_of(1)
    taken = StepChunks(table, max_rows=4)
    message = taken.take(chunk)
    assert message is not None
    assert problem in message
    assert (taken.num_tokens, taken.num_rows, table[1].block_ids) == (0, 0, [])
    # What was refused does not count: the right one is taken.
    assert taken.take(CHUNK) is None
    assert (taken.num_tokens, taken.num_rows, table[1].block_ids) == (6, 1, [0, 1])


def test_a_step_takes_so_many_chunks_and_tokens_and_each_sequence_once() -> None:
    table = table_of(1, 2, 3)
    taken = StepChunks(table)
    assert taken.take(replace(CHUNK, num_tokens=5, sample=False, score=True)) is None
    # The prompt's last token is not scored by itself.
    assert (taken.num_tokens, taken.num_rows) == (5, 4)
    for chunk, problem in (
        (replace(CHUNK, first_position=5, num_tokens=1), "two chunks in one step"),
        (replace(CHUNK, sequence_id=2, new_block_ids=[2, 3]), "11 tokens, but the limit is 10"),
    ):
        message = taken.take(chunk)
        assert message is not None
        assert problem in message
    assert taken.take(replace(CHUNK, sequence_id=2, num_tokens=1, sample=False)) is None
    message = taken.take(replace(CHUNK, sequence_id=3, num_tokens=1, sample=False))
    assert message is not None
    assert "more than 2 chunks" in message


def test_positions_between_what_is_computed_and_the_chunk_are_missing() -> None:
    table = table_of(1)
    table[1].num_computed = 3
    assert table.problem(replace(CHUNK, first_position=3, num_tokens=3)) is None
    assert table.problem(replace(CHUNK, first_position=2, num_tokens=4)) is None
    message = table.problem(replace(CHUNK, first_position=4, num_tokens=2))
    assert message is not None
    assert "begins at position 4, but 3 are computed" in message


def test_appended_tokens_of_a_sequence_that_is_not_started_are_nobodys() -> None:
    table = table_of(1)
    table.append(2, [5])
    table.append(1, [7, 8])
    assert (table[1].token_ids[-2:], table[1].num_tokens) == ([7, 8], 8)


@pytest.mark.parametrize("num_tokens", [0, 33])
def test_a_text_is_scored_that_the_pool_holds(num_tokens: int) -> None:
    table = table_of()
    table.check_score(32)
    with pytest.raises(InvalidArgument, match=f"cannot score {num_tokens} tokens, but the pool holds 32"):
        table.check_score(num_tokens)


def test_no_text_is_scored_beside_sequences() -> None:
    with pytest.raises(InvalidArgument, match="while 1 sequences are started"):
        table_of(1).check_score(1)
