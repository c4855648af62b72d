"""The inputs written for a step, row by row against its chunks."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.drawn import DRAWN
from trunkline_server.backends.cuda.kernels.low_rank import TILE_ROWS
from trunkline_server.backends.cuda.state_pool import ChunkStates
from trunkline_server.backends.cuda.step_input import AdapterUse, Entry, StepLayout, StepShape, StepTensors, shape_of

BLOCK_SIZE = 16
MAX_BLOCKS = 4
NUM_ADAPTERS = 3


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    num_rows = draw(st.integers(1, 20))
    first = draw(st.integers(0, MAX_BLOCKS * BLOCK_SIZE - num_rows))
    return Entry(
        draw(st.lists(st.integers(-5, 99), min_size=num_rows, max_size=num_rows)),
        first,
        draw(st.lists(st.integers(0, 999), min_size=-(-(first + num_rows) // BLOCK_SIZE), max_size=MAX_BLOCKS)),
        sorted(draw(st.sets(st.integers(0, num_rows - 1)))),
        ChunkStates(draw(st.integers(-1, 9)), [(draw(st.integers(0, num_rows - 1)), draw(st.integers(0, 9)))]),
        draw(st.integers(0, 9)),
        draw(st.none() | st.builds(AdapterUse, st.integers(1, NUM_ADAPTERS), st.sampled_from([0.5, 1.0]))),
    )


@DRAWN
@given(st.lists(entries(), max_size=5), st.integers(0, 9), st.integers(0, 3))
def test_rows_match_the_chunks_and_the_rest_is_padding(step: list[Entry], more_rows: int, more_entries: int) -> None:
    needed = shape_of(step, 64, NUM_ADAPTERS)
    assert needed.num_adapters == (NUM_ADAPTERS if any(entry.adapter for entry in step) else 0)
    shape = StepShape(
        needed.num_rows + more_rows, needed.num_entries + more_entries, needed.num_logits + more_rows,
        num_adapters=needed.num_adapters,
    )  # fmt: skip
    layout = StepLayout(shape, MAX_BLOCKS)
    # Left over from another step.
    words = np.full(layout.num_words, 77, dtype=np.int32)
    layout.write(words, step, BLOCK_SIZE)
    tensors = layout.tensors(torch.from_numpy(words))

    rows: list[tuple[int, int, int, int]] = []
    sampling, kept_states = [], [-1] * shape.num_rows
    for number, entry in enumerate(step):
        sampling += [len(rows) + row for row in entry.logit_rows]
        assert tensors.query_begin[number] == len(rows)
        assert tensors.state_source[number] == entry.states.source
        assert tensors.second_text[number] == entry.second_text
        for row, state in entry.states.kept:
            kept_states[len(rows) + row] = state
        assert tensors.context_length[number] == entry.first_position + len(entry.token_ids)
        assert tensors.block_tables[number, : len(entry.block_ids)].tolist() == list(entry.block_ids)
        for row, token in enumerate(entry.token_ids):
            position = entry.first_position + row
            slot = entry.block_ids[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            rows.append((token, position, slot, number))
    written = zip(
        tensors.token_ids.tolist(), tensors.positions.tolist(), tensors.slots.tolist(), tensors.row_entry.tolist(),
        strict=True,
    )  # fmt: skip
    assert list(written) == rows + [(0, 0, -1, -1)] * (shape.num_rows - len(rows))
    assert tensors.query_begin[len(step) :].tolist() == [len(rows)] * (shape.num_entries - len(step) + 1)
    assert tensors.context_length[len(step) :].tolist() == [0] * (shape.num_entries - len(step))
    assert tensors.sampling_rows.tolist() == sampling + [0] * (shape.num_logits - len(sampling))
    assert tensors.kept_state.tolist() == kept_states
    assert tensors.state_source[len(step) :].tolist() == [-1] * (shape.num_entries - len(step))
    assert tensors.second_text[len(step) :].tolist() == [0] * (shape.num_entries - len(step))
    check_adapters(step, tensors)


def check_adapters(step: list[Entry], tensors: StepTensors) -> None:
    """Each row with an adapter is in one tile of its slot, in order, with its scale."""
    uses = [entry.adapter for entry in step for _ in entry.token_ids]
    expected = sorted((use.slot, row, use.scale) for row, use in enumerate(uses) if use is not None)
    if not expected:
        assert tensors.adapter_rows is None
        return
    assert tensors.adapter_rows is not None
    tiles, rows, scales = (part.tolist() for part in tensors.adapter_rows)
    found = []
    for slot, begin, end in tiles:
        assert 0 < end - begin <= TILE_ROWS if slot else begin == end == 0
        found += [(slot, rows[place], scales[place]) for place in range(begin, end)]
    assert found == expected
