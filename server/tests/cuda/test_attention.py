"""Paged attention against a softmax in f32 over the stored K and V, and against itself bit for bit."""

from __future__ import annotations

import pytest
import torch
from tests.cuda.kv_oracle import Scene, make_scene
from tests.tiers import first, full, matrix
from trunkline_server.backends.cuda.kernels.attention_plan import MAX_SPLIT_TOKENS, SPLIT, fits_in_splits

# A decode across the end of a split, a new sequence, a chunk of a few tokens, and one of many.
MIXED = [(SPLIT + 2, 1), (5, 5), (70, 33), (90, MAX_SPLIT_TOKENS + 6)]
# Errors of f32 sums, and of weights and results rounded to bf16 or f16.
BOUNDS = {"f32": 2e-6, "f16": 1e-3}
BF16_BOUND = 6e-3


def finest(device: str) -> str:
    """Returns the format with the least error. f32 is not used on GPUs: its products take Hopper's compiler minutes."""
    return "f32" if device == "cpu" else "bf16"


def assert_close(actual: torch.Tensor, scene: Scene, **options: float | int | torch.Tensor | None) -> None:
    expected = scene.expected(**options)  # type: ignore[arg-type]
    error = (actual[: expected.shape[0]].float().cpu() - expected).norm() / expected.norm()
    assert error < BOUNDS.get(scene.pool.format.value, BF16_BOUND), f"relative error {error}"


@pytest.mark.parametrize("format", first(["f32", "f16", "bf16", "fp8", "int8", "int4"], "f32", "fp8", "int4"))
def test_every_format_is_read_as_stored(format: str, device: str) -> None:
    if format == "f32" and device == "cuda":
        pytest.skip("f32 is for the interpreter")
    scene = make_scene(MIXED, device=device, format=format)
    assert_close(scene.attend(), scene)


@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_size", "block_size"),
    [
        (1, 1, 64, 32),
        (3, 1, 80, 16),
        full(7, 1, 96, 64),
        full(4, 4, 128, 128),
        full(8, 1, 256, 16),
    ],
)
def test_heads_and_blocks_of_every_size(
    num_heads: int, num_kv_heads: int, head_size: int, block_size: int, device: str
) -> None:
    scene = make_scene(
        [(SPLIT + 2, 1), (67, MAX_SPLIT_TOKENS + 1)],
        device=device,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        block_size=block_size,
        format="int4" if head_size == 80 else finest(device),
    )
    assert_close(scene.attend(), scene)


@pytest.mark.parametrize("window", first([1, 64, 65, SPLIT + 1], 65))
def test_a_window_ends_at_its_position(window: int, device: str) -> None:
    scene = make_scene([(SPLIT + 44, 1), (SPLIT + 10, MAX_SPLIT_TOKENS + 6)], device=device, format=finest(device))
    assert_close(scene.attend(window=window), scene, window=window)


@pytest.mark.parametrize("max_partial_rows", [0, 256])
def test_sinks_take_part_in_the_softmax_and_have_no_value(max_partial_rows: int, device: str) -> None:
    scene = make_scene(MIXED, device=device, format=finest(device))
    # One takes much, and one nearly nothing.
    sinks = torch.tensor([4.5, -30.0], device=device)
    found = scene.attend(sinks=sinks, window=100, max_partial_rows=max_partial_rows)
    assert_close(found, scene, sinks=sinks, window=100)
    with pytest.raises(AssertionError, match="relative error"):
        assert_close(found, scene, window=100)


@pytest.mark.parametrize("soft_cap", [2.0])
def test_scores_are_capped_softly(soft_cap: float, device: str) -> None:
    scene = make_scene(MIXED, device=device, format=finest(device))
    assert_close(scene.attend(soft_cap=soft_cap, scale=3.0), scene, soft_cap=soft_cap, scale=3.0)


@pytest.mark.parametrize(("format", "window"), [full("bf16", None), ("bf16", 150), full("int8", None)])
def test_bits_do_not_depend_on_chunking_or_neighbours(format: str, window: int | None, device: str) -> None:
    """NumPy does not specify the order of its products, so in the interpreter the sums are exact."""
    num_rows = MAX_SPLIT_TOKENS + 6
    first = SPLIT - 20
    whole = make_scene([(first + num_rows, num_rows)], device=device, format=format, is_exact=device == "cpu", seed=1)
    sinks = None if window is None else torch.tensor([0.4, 3.7], device=device)
    at_once = whole.attend(window=window, sinks=sinks)
    chunks = [(0, MAX_SPLIT_TOKENS), (MAX_SPLIT_TOKENS, num_rows), (3, 4), (21, 22), (num_rows - 1, num_rows)]
    other = whole.tables.flip(1)
    cut = make_scene([(20, 3), *((first + end, end - begin) for begin, end in chunks)], device=device, format=format)
    cut.pool, cut.tables = whole.pool, torch.cat([other] + [whole.tables] * len(chunks))
    for index, (begin, end) in enumerate(chunks):
        cut.queries[cut.rows(index + 1)] = whole.queries[begin:end]
    # All entries in splits; the long one and some of one row whole; all entries whole.
    for max_partial_rows in (256, 17, 0):
        pieces = cut.attend(window=window, sinks=sinks, max_partial_rows=max_partial_rows)
        for index, (begin, end) in enumerate(chunks):
            assert torch.equal(pieces[cut.rows(index + 1)], at_once[begin:end]), f"rows {begin} to {end}"


@pytest.mark.parametrize("format", ["bf16", "int4"])
def test_padding_is_not_written(format: str, device: str) -> None:
    scene = make_scene(MIXED[:3], device=device, format=format)
    out = torch.full((scene.num_rows + 3, 64), 7.0, dtype=torch.bfloat16, device=device)
    scene.attend(padding_rows=3, padding_entries=2, out=out)
    assert_close(out, scene)
    assert (out[scene.num_rows :] == 7.0).all()


def test_a_step_of_only_padding_writes_nothing(device: str) -> None:
    scene = make_scene([(1, 1)], device=device)
    scene.entries, scene.tables, scene.queries = [], scene.tables[:0], scene.queries[:0]
    out = torch.full((2, 64), 7.0, dtype=torch.bfloat16, device=device)
    scene.attend(padding_rows=2, padding_entries=2, out=out)
    assert (out == 7.0).all()


def test_decode_only_steps_need_a_row_for_each_split(device: str) -> None:
    scene = make_scene([(SPLIT + 1, 1), (SPLIT, 1), (1, 1)], device=device, format=finest(device))
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
