"""Attention of every kind against a softmax in f32 over the stored K and V, and against itself bit for bit."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tests.cuda.compiled import HOPPER, OTHER_CARDS
from tests.cuda.kv_oracle import Scene, make_scene
from tests.tiers import draw_seed, full, matrix
from trunkline_server.backends.cuda.kernels import attention
from trunkline_server.backends.cuda.kernels.attention_plan import (
    MAX_SPLIT_TOKENS,
    SPLIT,
    AttentionPlan,
    AttentionShape,
    AttentionStep,
    fits_in_splits,
)

# A decode across the end of a split, a new sequence, a chunk of a few tokens (windows of 65 positions begin in two
# splits), and one of many.
MIXED = [(SPLIT + 2, 1), (5, 5), (SPLIT + 80, 33), (90, MAX_SPLIT_TOKENS + 6)]
# The same without the chunks that add nothing where sizes differ.
FEWER = [(SPLIT + 2, 1), (67, MAX_SPLIT_TOKENS + 1)]
# Texts of encoders: one of several splits, one that is computed in parallel over them, and a single token.
TEXTS = [(SPLIT + MAX_SPLIT_TOKENS, SPLIT + MAX_SPLIT_TOKENS), (MAX_SPLIT_TOKENS - 1, MAX_SPLIT_TOKENS - 1), (1, 1)]
# Sizes of models whose values are the ends of keys; those of DeepSeek.
LATENTS = {"head_size": 48, "latent_size": 32}
DEEPSEEK = {"head_size": 576, "latent_size": 512, "block_size": 64}
# Errors of f32 sums, and of weights and results rounded to bf16 or f16.
BOUNDS = {"f32": 2e-6, "f16": 1e-3}
BF16_BOUND = 6e-3


def scene_of(entries: list[tuple[int, int]], device: str, format: str, **sizes: Any) -> Scene:
    """Makes a scene. f32 is not used on GPUs: its products take Hopper's compiler minutes."""
    return make_scene(entries, device=device, format="bf16" if (format, device) == ("f32", "cuda") else format, **sizes)


def assert_close(actual: torch.Tensor, scene: Scene, **options: Any) -> None:
    expected = scene.expected(**options)
    error = (actual[: expected.shape[0]].float().cpu() - expected).norm() / expected.norm()
    assert error < BOUNDS.get(scene.pool.format.value, BF16_BOUND), f"relative error {error}"


@pytest.mark.parametrize(
    ("format", "sizes", "options"),
    [
        ("f32", {}, {}),
        full("f16", {}, {}),
        full("bf16", {}, {}),
        ("fp8", {}, {}),
        full("int8", {}, {}),
        ("int4", {}, {}),
        ("f32", {"num_heads": 1, "head_size": 64, "block_size": 32}, {}),
        ("int4", {"num_heads": 3, "head_size": 80}, {}),
        full("f32", {"num_heads": 7, "head_size": 96, "block_size": 64}, {}),
        full("f32", {"num_heads": 4, "num_kv_heads": 4, "head_size": 128, "block_size": 128}, {}),
        full("f32", {"num_heads": 8, "head_size": 256}, {}),
        ("f32", {**LATENTS, "num_heads": 5}, {}),
        full("f16", {**LATENTS, "num_heads": 64, "block_size": 32}, {}),
        full("bf16", {**LATENTS, "num_heads": 40, "block_size": 64}, {}),
        ("bf16", {**DEEPSEEK, "num_heads": 16}, {"scale": 0.05}),
        full("bf16", {**DEEPSEEK, "num_heads": 128}, {"scale": 0.05}),
        ("f32", {}, {"window": 65}),
        *(full("f32", {}, {"window": window}) for window in (1, 64, SPLIT + 1)),
        ("f32", {}, {"soft_cap": 2.0, "scale": 3.0}),
        # One sink takes much, and one nearly nothing.
        ("f32", {}, {"sinks": [4.5, -30.0], "window": 100}),
    ],
)
@pytest.mark.parametrize("max_partial_rows", [256, full(0)])
def test_results_are_those_of_the_stored_elements(
    format: str, sizes: dict[str, int], options: dict[str, Any], max_partial_rows: int, device: str
) -> None:
    scene = scene_of(FEWER if sizes else MIXED, device, format, **sizes)
    if "sinks" in options:
        options = {**options, "sinks": torch.tensor(options["sinks"], device=device)}
    assert_close(scene.attend(**options, max_partial_rows=max_partial_rows), scene, **options)


@pytest.mark.parametrize(
    ("window", "max_partial_rows"), [(None, 256), (9, 256), full(9, 0), full(70, 256), full(70, 0), full(None, 0)]
)
def test_rows_of_encoders_see_positions_behind_their_own(
    window: int | None, max_partial_rows: int, device: str
) -> None:
    scene = scene_of(TEXTS, device, "f32", num_heads=4)
    found = scene.attend(window=window, sees_all=True, max_partial_rows=max_partial_rows)
    assert_close(found, scene, window=window, sees_all=True)


@pytest.mark.parametrize("number", range(4))
def test_any_step_is_computed_and_padding_is_not_written(
    number: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = draw_seed() + number
    print(f"seed {seed}")
    rng, entries = random.Random(seed), []
    if device == "cpu":
        # Cards differ in where a split is merged.
        monkeypatch.setattr(attention, "card_of", lambda _: OTHER_CARDS[0] if number % 2 else HOPPER)
    for _ in range(rng.randint(1, 6)):
        num_rows = rng.choice([1, 1, rng.randint(1, MAX_SPLIT_TOKENS), rng.randint(1, 2 * MAX_SPLIT_TOKENS)])
        entries.append((num_rows + rng.choice([0, rng.randint(0, 3 * SPLIT)]), num_rows))
    window, max_partial_rows = rng.choice([None, SPLIT, rng.randint(1, 700)]), rng.choice([0, 5, 200, 10_000])
    padding = {"padding_rows": rng.randint(0, 4), "padding_entries": rng.randint(0, 3)}
    sizes = rng.choice([{"num_heads": 2}, {"num_heads": 3, **LATENTS}])
    window = None if "latent_size" in sizes else window
    scene = scene_of(entries, device, "f32", **sizes)
    width = scene.expected().shape[1]
    out = torch.full((scene.num_rows + padding["padding_rows"], width), 7.0, dtype=scene.queries.dtype, device=device)
    scene.attend(window=window, max_partial_rows=max_partial_rows, out=out, **padding)
    assert_close(out, scene, window=window)
    assert (out[scene.num_rows :] == 7.0).all()


@pytest.mark.parametrize(
    ("format", "window", "sizes"),
    [full("bf16", None, {}), ("bf16", 150, {}), full("int8", None, {}), ("bf16", None, {**LATENTS, "num_heads": 3})],
)
def test_bits_do_not_depend_on_chunking_or_neighbours(
    format: str, window: int | None, sizes: dict[str, int], device: str
) -> None:
    """NumPy does not specify the order of its products, so in the interpreter the sums are exact."""
    num_rows = MAX_SPLIT_TOKENS + 6
    first = SPLIT - 20
    whole = scene_of([(first + num_rows, num_rows)], device, format, is_exact=device == "cpu", seed=1, **sizes)
    options = {} if window is None else {"window": window, "sinks": torch.tensor([0.4, 3.7], device=device)}
    at_once = whole.attend(**options)
    chunks = [(0, MAX_SPLIT_TOKENS), (MAX_SPLIT_TOKENS, num_rows), (3, 4), (21, 22), (num_rows - 1, num_rows)]
    cut = scene_of([(20, 3), *((first + end, end - begin) for begin, end in chunks)], device, format, **sizes)
    cut.pool, cut.tables = whole.pool, torch.cat([whole.tables.flip(1)] + [whole.tables] * len(chunks))
    for index, (begin, end) in enumerate(chunks):
        cut.queries[cut.rows(index + 1)] = whole.queries[begin:end]
    # All entries in splits; the long one and some of one row whole; all entries whole.
    for max_partial_rows in (256, 17, 0):
        pieces = cut.attend(**options, max_partial_rows=max_partial_rows)
        for index, (begin, end) in enumerate(chunks):
            assert torch.equal(pieces[cut.rows(index + 1)], at_once[begin:end]), f"rows {begin} to {end}"


def test_a_step_of_only_padding_writes_nothing(device: str) -> None:
    scene = make_scene([(1, 1)], device=device)
    scene.entries, scene.tables, scene.queries = [], scene.tables[:0], scene.queries[:0]
    out = torch.full((2, 64), 7.0, dtype=torch.bfloat16, device=device)
    scene.attend(padding_rows=2, padding_entries=2, out=out)
    assert (out == 7.0).all()


def test_decode_only_steps_need_a_row_for_each_split(device: str) -> None:
    scene = scene_of([(SPLIT + 1, 1), (SPLIT, 1), (1, 1)], device, "f32")
    contexts = [entry.context for entry in scene.entries]
    assert fits_in_splits(contexts, 4) and not fits_in_splits(contexts, 3)
    assert_close(scene.attend(decode_only=True, max_partial_rows=4), scene)


@pytest.mark.parametrize(("format", "max_partial_rows"), matrix(["bf16", "fp8"], [0, 256]))
def test_positions_beyond_a_sequence_are_not_read(format: str, max_partial_rows: int, device: str) -> None:
    scene = make_scene([(21, 1), (39, 9)], device=device, format=format)
    before = scene.attend(max_partial_rows=max_partial_rows)
    used = torch.cat([scene.slots(0), scene.slots(1)])
    size = scene.pool.layout.block_size
    unused = torch.ones(scene.pool.num_blocks * size, dtype=torch.bool)
    unused[used] = False
    layout = scene.pool.layout
    elements = scene.pool.elements(1)[:, : 2 * layout.values_offset]
    view = elements.view(scene.pool.num_blocks, 2 * layout.num_kv_heads, size, layout.row_elements)
    nan = 0x7F if format == "fp8" else torch.nan
    blocks, places = unused.view(-1, size).nonzero(as_tuple=True)
    view[blocks, :, places] = nan
    assert torch.equal(scene.attend(max_partial_rows=max_partial_rows), before)


@pytest.mark.parametrize("max_partial_rows", [0, 256])
def test_nan_stays_in_its_sequence(max_partial_rows: int, device: str) -> None:
    scene = make_scene([(30, 1), (70, 2)], device=device, format="bf16")
    before = scene.attend(max_partial_rows=max_partial_rows)
    block = int(scene.tables[1, 1])
    scene.pool.elements(1)[block] = torch.nan
    after = scene.attend(max_partial_rows=max_partial_rows)
    assert torch.equal(after[:1], before[:1])
    assert after[1:].isnan().all()


def test_a_step_larger_than_the_plan_is_refused(device: str) -> None:
    shape = AttentionShape(num_heads=8, num_kv_heads=2, head_size=64)
    plan = AttentionPlan(shape, max_rows=4, max_entries=1, max_partial_rows=0, window=None, device=device)
    entries = torch.zeros(2, dtype=torch.int32, device=device)
    with pytest.raises(AssertionError, match="the step is larger than the plan"):
        plan.update(AttentionStep(entries[None], entries, entries[:1]), 5)


def test_too_many_query_heads_per_kv_head_are_refused() -> None:
    with pytest.raises(AssertionError, match="128 query heads share a KV head, but at most 64 may"):
        AttentionShape(num_heads=128, num_kv_heads=1, head_size=64)
