"""The items into which a step's attention is divided, against a plain model."""

from __future__ import annotations

import random

import pytest
import torch
from trunkline_server.backends.cuda.kernels.attention_plan import (
    MAX_SPLIT_TOKENS,
    SPLIT,
    AttentionPlan,
    AttentionShape,
    AttentionStep,
)

SHAPE = AttentionShape(num_heads=8, num_kv_heads=2, head_size=64)
Items = list[tuple[int, ...]]


def modelled(entries: list[tuple[int, int]], window: int | None, space: int) -> tuple[Items, Items, Items]:
    """Returns the items for splits, whole entries and merges. entries: (context, rows), context 0 for padding."""
    split_items: Items = []
    whole_items: Items = []
    merges: Items = []
    row_begin = partial = 0
    for entry, (context, num_rows) in enumerate(entries):
        if context == 0:
            continue

        def first_split(position: int) -> int:
            return 0 if window is None else max(position - window + 1, 0) // SPLIT

        first = first_split(context - num_rows)
        num_splits = (context - 1) // SPLIT + 1 - first
        is_short = num_rows <= MAX_SPLIT_TOKENS
        end = partial + num_rows * num_splits * is_short
        if is_short and end <= space:
            for split in range(num_splits):
                for token in range(0, num_rows, SHAPE.split_tokens):
                    place = (first + split, partial + split * num_rows, row_begin, num_rows, context)
                    split_items.append((entry, token, *place))
            for token in range(num_rows):
                position = context - num_rows + token
                begin = partial + (first_split(position) - first) * num_rows + token
                count = position // SPLIT + 1 - first_split(position)
                merges.append((row_begin + token, begin, num_rows, count))
        else:
            whole_items += [(entry, token) for token in range(0, num_rows, SHAPE.whole_tokens)][::-1]
        partial = end
        row_begin += num_rows
    return split_items, whole_items, merges


@pytest.mark.parametrize("seed", range(12))
def test_every_row_is_computed_once(seed: int, device: str) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    entries = []
    for _ in range(rng.randint(1, 9)):
        num_rows = rng.choice([1, 1, rng.randint(1, MAX_SPLIT_TOKENS), rng.randint(1, 200)])
        entries.append((num_rows + rng.choice([0, rng.randint(0, 5 * SPLIT)]), num_rows))
    entries += [(0, 0)] * rng.randint(0, 3)
    window = rng.choice([None, 1, SPLIT, rng.randint(1, 700)])
    space = rng.choice([0, 5, 200, 10_000])
    num_rows = sum(rows for _, rows in entries) + rng.randint(0, 4)
    begins = [sum(rows for _, rows in entries[:index]) for index in range(len(entries) + 1)]
    step = AttentionStep(
        torch.zeros(len(entries), 1, dtype=torch.int32, device=device),
        torch.tensor(begins, dtype=torch.int32, device=device),
        torch.tensor([context for context, _ in entries], dtype=torch.int32, device=device),
    )
    plan = AttentionPlan(
        SHAPE, max_rows=num_rows, max_entries=len(entries), max_partial_rows=space, window=window, device=device
    )
    plan.update(step, num_rows)
    split_items, whole_items, merges = modelled(entries, window, space)
    counts = plan.counts.tolist()
    assert counts == [len(split_items), len(whole_items), len(merges)]
    assert [tuple(item[:7]) for item in plan.split_items[: counts[0]].tolist()] == split_items
    assert [tuple(item[:2]) for item in plan.whole_items[: counts[1]].tolist()] == whole_items
    assert [tuple(item) for item in plan.merge_rows[: counts[2]].tolist()] == merges
    assert counts[0] <= plan.split_items.shape[0] and counts[1] <= plan.max_whole_items(num_rows, len(entries))


def test_a_step_larger_than_the_plan_is_refused(device: str) -> None:
    plan = AttentionPlan(SHAPE, max_rows=4, max_entries=1, max_partial_rows=0, window=None, device=device)
    entries = torch.zeros(2, dtype=torch.int32, device=device)
    with pytest.raises(AssertionError, match="the step is larger than the plan"):
        plan.update(AttentionStep(entries[None], entries, entries[:1]), 5)


def test_too_many_query_heads_per_kv_head_are_refused() -> None:
    with pytest.raises(AssertionError, match="128 query heads share a KV head, but at most 64 may"):
        AttentionShape(num_heads=128, num_kv_heads=1, head_size=64)
