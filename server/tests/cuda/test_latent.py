"""Latent attention, products of heads and choices of experts, against plain torch and each row against itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.cuda.kv_oracle import Scene, make_pool, make_rope, make_scene, random, stored
from tests.tiers import full
from trunkline_server.backends.cuda.kernels.attention_latent import latent_shape
from trunkline_server.backends.cuda.kernels.attention_plan import MAX_SPLIT_TOKENS, SPLIT
from trunkline_server.backends.cuda.kernels.experts import route
from trunkline_server.backends.cuda.kernels.head_linear import head_linear
from trunkline_server.backends.cuda.kernels.rope_kv import rope_and_write_kv, rope_tables
from trunkline_server.backends.cuda.kv_pool import KvFormat, KvLayout
from trunkline_server.backends.reference.ops import ReferenceOps
from trunkline_server.backends.reference.turn import rotate
from trunkline_server.errors import InvalidArgument
from trunkline_server.models.ops import Experts

# A decode across the end of a split, a new sequence, a chunk of a few tokens, and one of many.
MIXED = [(SPLIT + 2, 1), (5, 5), (70, 3), (90, MAX_SPLIT_TOKENS + 6)]
ROTATED, LATENT = 16, 32
BOUNDS = {"f32": 2e-6, "f16": 1e-3, "bf16": 6e-3}


def latent_scene(entries: list[tuple[int, int]], device: str, format: str, num_heads: int, **options: int) -> Scene:
    sizes = {"head_size": ROTATED + LATENT, "latent_size": LATENT}
    return make_scene(entries, device=device, format=format, num_heads=num_heads, **{**sizes, **options})


@pytest.mark.parametrize(
    ("format", "num_heads", "block_size"), [("f32", 5, 16), full("f16", 64, 32), full("bf16", 16, 64)]
)
def test_a_value_is_the_end_of_a_key(format: str, num_heads: int, block_size: int, device: str) -> None:
    if format == "f32" and device == "cuda":
        pytest.skip("f32 is for the interpreter")
    scene = latent_scene(MIXED, device, format, num_heads, block_size=block_size)
    expected = scene.expected()
    error = (scene.attend().float().cpu() - expected).norm() / expected.norm()
    assert error < BOUNDS[format], f"relative error {error}"


@pytest.mark.parametrize("num_heads", [16, full(128)])
def test_the_sizes_of_deepseek(num_heads: int, device: str) -> None:
    sizes = {"head_size": 576, "latent_size": 512, "block_size": 64}
    scene = latent_scene([(SPLIT + 2, 1), (70, MAX_SPLIT_TOKENS + 1)], device, "bf16", num_heads, **sizes)
    expected = scene.expected(scale=0.05)
    error = (scene.attend(scale=0.05).float().cpu() - expected).norm() / expected.norm()
    assert error < BOUNDS["bf16"], f"relative error {error}"


@pytest.mark.parametrize(("num_heads", "group"), [(16, 16), (128, 32), (40, 20), (7, 7), (67, 1)])
def test_heads_are_divided_evenly_among_programs(num_heads: int, group: int) -> None:
    shape = latent_shape(num_heads, 512)
    assert (shape.group, shape.num_kv_heads) == (group, num_heads // group)
    assert shape.whole_tokens == shape.split_tokens == 32 // group


def test_bits_do_not_depend_on_chunking_or_neighbours(device: str) -> None:
    """NumPy does not specify the order of its products, so in the interpreter the sums are exact."""
    num_rows = MAX_SPLIT_TOKENS + 6
    begin = SPLIT - 20
    whole = latent_scene([(begin + num_rows, num_rows)], device, "bf16", 3, seed=1, is_exact=device == "cpu")
    at_once = whole.attend()
    chunks = [(0, MAX_SPLIT_TOKENS), (MAX_SPLIT_TOKENS, num_rows), (3, 4), (num_rows - 1, num_rows)]
    entries = [(20, 3), *((begin + end, end - first_row) for first_row, end in chunks)]
    cut = latent_scene(entries, device, "bf16", 3)
    cut.pool, cut.tables = whole.pool, torch.cat([whole.tables.flip(1)] + [whole.tables] * len(chunks))
    for index, (first_row, end) in enumerate(chunks):
        cut.queries[cut.rows(index + 1)] = whole.queries[first_row:end]
    # All entries in splits; the long one and some of one row whole; all entries whole.
    for max_partial_rows in (256, 17, 0):
        pieces = cut.attend(max_partial_rows=max_partial_rows)
        for index, (first_row, end) in enumerate(chunks):
            assert torch.equal(pieces[cut.rows(index + 1)], at_once[first_row:end]), f"rows {first_row} to {end}"


def test_padding_is_not_written(device: str) -> None:
    scene = latent_scene(MIXED[:3], device, "bf16", 2)
    out = torch.full((scene.num_rows + 3, 2 * LATENT), 7.0, dtype=torch.bfloat16, device=device)
    scene.attend(padding_rows=3, padding_entries=2, out=out)
    assert (out[scene.num_rows :] == 7.0).all()
    assert not (out[: scene.num_rows] == 7.0).all(1).any()


def test_keys_are_rotated_and_written_once(device: str) -> None:
    pool = make_pool("f32", device, num_kv_heads=1, head_size=ROTATED + LATENT, latent_size=LATENT)
    q, k = random(3, 2 * (ROTATED + LATENT)).to(device), random(3, ROTATED + LATENT, seed=1).to(device)
    rope, positions = make_rope(ROTATED), torch.tensor([4, 20, 7], dtype=torch.int32, device=device)
    slots = torch.tensor([5, 33, -1], dtype=torch.int32, device=device)
    turned = rope_and_write_kv(q, k, None, positions, slots, rope_tables(rope, 64, device), pool, 1)
    expected_q = rotate(q.cpu().view(3, 2, -1), positions.cpu(), rope, 1.0).flatten(1)
    torch.testing.assert_close(turned.cpu(), expected_q)
    keys, values = stored(pool, 1)
    expected = rotate(k.cpu().view(3, 1, -1), positions.cpu(), rope, 1.0)
    torch.testing.assert_close(keys[[5, 33]], expected[:2])
    torch.testing.assert_close(values[[5, 33]], k.cpu().view(3, 1, -1)[:2, :, ROTATED:])
    assert keys.count_nonzero() == 2 * (ROTATED + LATENT)
    pool.copy_block(2, 0)
    torch.testing.assert_close(stored(pool, 1)[0][1], expected[1])


def test_a_block_holds_keys_alone() -> None:
    layout = KvLayout(block_size=64, num_kv_heads=1, head_size=576, format=KvFormat.BF16, latent_size=512)
    assert layout.piece_bytes == 64 * 576 * 2


@pytest.mark.parametrize(
    ("head_size", "latent_size", "format", "message"),
    [
        (576, 512, "int8", "`--kv-cache-dtype` is int8, but the cuda backend keeps latents as bf16 or f16"),
        (576, 512, "fp8", "`--kv-cache-dtype` is fp8"),
        (560, 512, "bf16", "the rotated part of a key has 48 features, must be a power of two from 16 to 512"),
        (112, 96, "bf16", "the latent has 96 features"),
        (1088, 1024, "bf16", "the latent has 1024 features"),
    ],
)
def test_other_formats_and_sizes_are_refused(head_size: int, latent_size: int, format: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        KvLayout(
            block_size=16, num_kv_heads=1, head_size=head_size, format=KvFormat(format), latent_size=latent_size
        )  # fmt: skip


@pytest.mark.parametrize("sizes", [(3, 48, 80), (2, 16, 20)])
def test_each_head_has_a_matrix_of_its_own(sizes: tuple[int, int, int], device: str) -> None:
    num_heads, num_inputs, num_outputs = sizes
    weight = random(num_heads, num_outputs, num_inputs).to(device)
    # A part of wider rows.
    x = random(9, num_heads * num_inputs + 5, seed=1).to(device)[:, 5:]
    found = head_linear(x, weight)
    heads = [F.linear(part, matrix) for part, matrix in zip(x.chunk(num_heads, 1), weight, strict=True)]
    torch.testing.assert_close(found, torch.cat(heads, 1), rtol=1e-4, atol=1e-4)
    for row in (0, 8):
        assert torch.equal(head_linear(x[row : row + 1], weight), found[row : row + 1])


@pytest.mark.parametrize("renormalise", [False, True])
@pytest.mark.parametrize(
    ("num_experts", "groups", "used_groups", "num_used", "sigmoid", "is_biased"),
    [(12, 4, 2, 3, True, True), (20, 5, 1, 4, False, False), (9, 1, 1, 4, True, False), (6, 3, 2, 4, True, True)],
)
def test_experts_are_chosen_as_by_the_reference(
    num_experts: int,
    groups: int,
    used_groups: int,
    num_used: int,
    sigmoid: bool,
    is_biased: bool,
    renormalise: bool,
    device: str,
) -> None:
    logits, bias = random(7, num_experts), random(num_experts, seed=1) if is_biased else None
    experts = Experts(
        gate=(), up=(), down=(), num_used=num_used, renormalise=renormalise, sigmoid=sigmoid,
        choice_bias="bias" if is_biased else None, num_groups=groups, num_used_groups=used_groups,
    )  # fmt: skip
    reference = ReferenceOps({"bias": bias}.__getitem__, None, None)  # type: ignore[arg-type]
    chosen, weights = reference.routes(logits, experts)
    entries = torch.zeros(7, dtype=torch.int32, device=device)
    routes = route(
        logits.to(device), entries, num_used, renormalise=renormalise, sigmoid=sigmoid,
        choice_bias=None if bias is None else bias.to(device), num_groups=groups, num_used_groups=used_groups,
    )  # fmt: skip
    torch.testing.assert_close(routes.weights.cpu(), weights)
    experts_of_places = torch.repeat_interleave(torch.arange(num_experts), routes.begins.cpu().diff())
    assert torch.equal(experts_of_places[routes.places.cpu().long()].view(7, num_used), chosen)


def test_logits_that_are_not_numbers_choose_experts_of_one_group(device: str) -> None:
    logits = torch.full((2, 8), float("nan"), device=device)
    logits[1, 5] = 1.0
    entries = torch.zeros(2, dtype=torch.int32, device=device)
    routes = route(logits, entries, 2, renormalise=True, sigmoid=True, num_groups=4, num_used_groups=1)
    experts_of_places = torch.repeat_interleave(torch.arange(8), routes.begins.cpu().diff())
    chosen = experts_of_places[routes.places.cpu().long()].view(2, 2)
    assert chosen.tolist() == [[0, 1], [5, 4]]
