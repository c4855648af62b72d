"""Rotation and storing of K and V, in every format of the pool."""

from __future__ import annotations

import pytest
import torch
from tests.cuda.kv_oracle import activation_dtype, hadamard, i32, make_pool, make_rope, random, stored
from tests.tiers import matrix
from trunkline_server.backends.cuda.kernels.hadamard import transform_heads
from trunkline_server.backends.cuda.kernels.rope_kv import rope_and_write_kv, rope_tables
from trunkline_server.backends.reference.turn import rotate

# Bounds on the rounding error relative to the norm of a nearly normal head.
BOUNDS = {"f32": 2e-7, "f16": 5e-4, "bf16": 4e-3, "fp8": 0.04, "int8": 0.012, "int4": 0.16}
FACTOR = 1.25


@pytest.mark.parametrize(
    ("format", "sizes"), matrix(["f32", "f16", "bf16", "fp8", "int8", "int4"], [(80, 32), (32, 32), (96, 96)])
)
def test_stored_elements_are_close_to_the_input(format: str, sizes: tuple[int, int], device: str) -> None:
    """sizes: of heads, and of their part that is rotated."""
    head_size, dim = sizes
    dtype, rotary = activation_dtype(format), make_rope(dim, attention_factor=FACTOR)
    num_heads, num_kv_heads, slots = 3, 2, [40, 41, -1, 0, 17]
    positions = [8, 9, 10, 11, 300]
    width = (num_heads + 2 * num_kv_heads) * head_size
    # Laid out as a stacked product leaves them, with other data behind.
    qkv = (random(5, width + 7) * 3).to(dtype)
    q, k, v = qkv[:, :width].split([num_heads * head_size, num_kv_heads * head_size, num_kv_heads * head_size], dim=1)
    pool = make_pool(format, device, head_size=head_size)
    before = pool.pieces.clone()
    tables = rope_tables(rotary, 512, device)
    rotated = rope_and_write_kv(
        *(x.to(device) if device == "cuda" else x for x in (q, k, v)),
        i32(positions, device),
        i32(slots, device),
        tables,
        pool,
        1,
    )
    at = torch.tensor(positions)
    expected_q = rotate(q.float().unflatten(1, (-1, head_size)), at, rotary, FACTOR)
    expected_k = rotate(k.float().unflatten(1, (-1, head_size)), at, rotary, FACTOR)
    expected_v = v.float().unflatten(1, (-1, head_size))
    if pool.format.is_transformed:
        matrix, run = hadamard(head_size), head_size & -head_size
        expected_q, expected_k, expected_v = expected_q @ matrix / run, expected_k @ matrix, expected_v @ matrix
    assert rotated.dtype == dtype
    rtol, atol = (1e-5, 1e-5) if format == "f32" else (4e-3, 1e-3)
    assert torch.allclose(rotated.float().cpu().view_as(expected_q), expected_q, rtol=rtol, atol=atol)
    keys, values = stored(pool, 1)
    written = [row for row, slot in enumerate(slots) if slot >= 0]
    used = [slots[row] for row in written]
    for actual, expected in ((keys, expected_k), (values, expected_v)):
        error = (actual[used] - expected[written]).norm(dim=-1) / expected[written].norm(dim=-1)
        assert error.max() < BOUNDS[format], f"relative error {error.max()}"
    unused = [slot for slot in range(48) if slot not in used]
    if not pool.format.is_transformed:  # zero bytes are levels of int4
        assert not keys[unused].any() and not values[unused].any()
    assert torch.equal(pool.pieces[0], before[0])


def test_queries_without_rotation_are_unchanged(device: str) -> None:
    pool = make_pool("bf16", device)
    q, k, v = (random(3, 64, seed=seed).bfloat16().to(device) for seed in range(3))
    assert rope_and_write_kv(q, k, v, i32([5, 6, 7], device), i32([1, 2, 3], device), None, pool, 0) is q
    keys, values = stored(pool, 0)
    assert torch.equal(keys[1:4].flatten(1), k.cpu().float()) and torch.equal(values[1:4].flatten(1), v.cpu().float())


def test_fp8_rounds_to_the_nearest_even_code(device: str) -> None:
    """Each head's largest is 448, so its scale is 1. Covers every code, those between, and those below the least."""
    codes = torch.arange(0, 127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    between = (codes[1:] + codes[:-1]) / 2
    near = torch.cat([between * (1 + 2.0**-20), between * (1 - 2.0**-20)])
    values = torch.cat([codes, between, near])
    values = torch.cat([values, -values])
    heads = torch.zeros(-(-len(values) // 31), 32)
    heads[:, 0] = 448.0
    heads[:, 1:] = torch.nn.functional.pad(values, (0, -len(values) % 31)).view(-1, 31)
    num_rows = heads.shape[0]
    pool = make_pool("fp8", device, num_kv_heads=1)
    x = heads.to(device)
    rows = list(range(num_rows))
    rope_and_write_kv(x, x, x, i32(rows, device), i32(rows, device), None, pool, 0)
    assert torch.equal(stored(pool, 0)[1][:num_rows, 0], heads.to(torch.float8_e4m3fn).float())


def test_heads_of_zeros_are_stored_as_zeros(device: str) -> None:
    for format in ("fp8", "int8", "int4"):
        pool = make_pool(format, device)
        x = torch.zeros(1, 64, dtype=torch.bfloat16, device=device)
        pool.pieces.fill_(99)
        rope_and_write_kv(x, x, x, i32([3], device), i32([4], device), None, pool, 0)
        for part in stored(pool, 0):
            assert not part[4].any()


@pytest.mark.parametrize("format", ["bf16", "fp8", "int8", "int4"])
@pytest.mark.filterwarnings("ignore:invalid value encountered")  # infinity minus infinity, in the interpreter
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_elements_affect_only_their_head(format: str, bad: float, device: str) -> None:
    pool = make_pool(format, device)
    x = random(1, 64).bfloat16()
    x[0, 40] = bad
    q = random(1, 64).bfloat16().to(device)
    x = x.to(device)
    rope_and_write_kv(q, x, x, i32([0], device), i32([4], device), None, pool, 0)
    for part in stored(pool, 0):
        assert part[4, 0].isfinite().all() and not part[4, 1].isfinite().all()


@pytest.mark.parametrize("format", ["bf16", "int4"])
def test_a_row_has_the_same_bits_alone_and_among_others(format: str, device: str) -> None:
    tables = rope_tables(make_rope(32), 64, device)
    q, k, v = (random(11, 64, seed=seed).bfloat16().to(device) for seed in range(3))
    together, alone = make_pool(format, device), make_pool(format, device)
    rows = list(range(11))
    queries = rope_and_write_kv(q, k, v, i32(rows, device), i32(rows, device), tables, together, 0)
    for row in (0, 9, 10):
        part = slice(row, row + 1)
        query = rope_and_write_kv(q[part], k[part], v[part], i32([row], device), i32([row], device), tables, alone, 0)
        assert torch.equal(query, queries[part])
        for one, among in zip(stored(alone, 0), stored(together, 0), strict=True):
            assert torch.equal(one[row], among[row])


@pytest.mark.parametrize("head_size", [64, 80])
def test_transforming_twice_restores_heads(head_size: int, device: str) -> None:
    x = random(18, 2 * head_size)
    count, run = i32([17], device), head_size & -head_size
    turned = x.clone().to(device)
    transform_heads(turned, head_size, 1.0, count)
    assert torch.allclose(
        turned[:17].cpu(), (x[:17].view(17, 2, head_size) @ hadamard(head_size)).flatten(1), atol=1e-4
    )
    transform_heads(turned, head_size, 1.0 / run, count)
    assert torch.allclose(turned[:17].cpu(), x[:17], atol=1e-5)
    assert torch.equal(turned[17:].cpu(), x[17:]), "rows beyond the count are not touched"


def test_keys_with_latents_are_rotated_and_written_once(device: str) -> None:
    pool = make_pool("f32", device, num_kv_heads=1, head_size=48, latent_size=32)
    q, k = random(3, 2 * 48).to(device), random(3, 48, seed=1).to(device)
    rope, positions = make_rope(16), torch.tensor([4, 20, 7], dtype=torch.int32, device=device)
    slots = torch.tensor([5, 33, -1], dtype=torch.int32, device=device)
    turned = rope_and_write_kv(q, k, None, positions, slots, rope_tables(rope, 64, device), pool, 1)
    expected_q = rotate(q.cpu().view(3, 2, -1), positions.cpu(), rope, 1.0).flatten(1)
    torch.testing.assert_close(turned.cpu(), expected_q)
    keys, values = stored(pool, 1)
    expected = rotate(k.cpu().view(3, 1, -1), positions.cpu(), rope, 1.0)
    torch.testing.assert_close(keys[[5, 33]], expected[:2])
    torch.testing.assert_close(values[[5, 33]], k.cpu().view(3, 1, -1)[:2, :, 16:])
    assert keys.count_nonzero() == 2 * 48
    pool.copy_block(2, 0)
    torch.testing.assert_close(stored(pool, 1)[0][1], expected[1])
