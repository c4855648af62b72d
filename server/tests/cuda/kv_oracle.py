"""Decodes the pool's bytes and computes attention over them, in plain torch and f32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from trunkline_server.backends.cuda.kernels import card
from trunkline_server.backends.cuda.kernels.attention import (
    AttentionPlan,
    AttentionShape,
    AttentionSpace,
    AttentionStep,
    paged_attention,
)
from trunkline_server.backends.cuda.kernels.attention_latent import latent_attention, latent_shape
from trunkline_server.backends.cuda.kernels.attention_plan import whole_rows_of
from trunkline_server.backends.cuda.key_scaling import KeyScaling
from trunkline_server.backends.cuda.kv_pool import KvFormat, KvLayout, KvPool
from trunkline_server.models.ops import Rope

ACTIVATIONS = {"f32": torch.float32, "f16": torch.float16}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def i32(values: list[int], device: str) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def make_rope(dim: int, attention_factor: float = 1.0) -> Rope:
    inv_freq = torch.tensor([10_000 ** (-element / dim) for element in range(0, dim, 2)])
    return Rope(dim=dim, inv_freq=tuple(inv_freq.tolist()), attention_factor=attention_factor)


def make_pool(
    format: str,
    device: str | torch.device,
    *,
    num_layers: int = 2,
    num_blocks: int = 3,
    key_scaling: KeyScaling | None = None,
    **sizes: Any,
) -> KvPool:
    layout = KvLayout(format=KvFormat(format), **{"block_size": 16, "num_kv_heads": 2, "head_size": 32, **sizes})
    return KvPool(layout, num_layers=num_layers, num_blocks=num_blocks, device=device, key_scaling=key_scaling)


def activation_dtype(format: str) -> torch.dtype:
    """Returns the activations' dtype of models whose pool has this format."""
    return ACTIVATIONS.get(format, torch.bfloat16)


def stored(pool: KvPool, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns K and V [slots, G, D] f32 as stored in the pool, still transformed if its format transforms heads."""
    layout = pool.layout
    elements = _decoded(pool.elements(layer)[:, : layout.num_elements], layout.format)
    if layout.latent_size is not None:
        rows = elements.reshape(-1, 1, layout.head_size)
        return rows, rows[..., -layout.latent_size :]
    parts = elements.view(pool.num_blocks, 2, layout.num_kv_heads, layout.block_size, layout.head_size)
    if layout.format.has_scales:
        scales = pool.scales(layer)[:, : 2 * layout.num_kv_heads * layout.block_size].float().cpu()
        parts = parts * scales.view(*parts.shape[:-1], 1)
    keys, values = parts.permute(1, 0, 3, 2, 4).reshape(2, -1, layout.num_kv_heads, layout.head_size)
    return keys, values


def first_keys(pool: KvPool, layer: int) -> torch.Tensor:
    """Returns the correction of the key at position 0, if the block has it: [num_blocks, G, D] f32, mostly zero."""
    layout, num_heads = pool.layout, pool.layout.num_kv_heads
    if not layout.format.has_first_keys:
        return torch.zeros(pool.num_blocks, num_heads, layout.head_size)
    begin, first_scale = layout.first_keys_offset, layout.first_scales_offset
    elements = _decoded(pool.elements(layer)[:, begin : begin + num_heads * layout.row_elements], layout.format)
    scales = pool.scales(layer)[:, first_scale : first_scale + num_heads].float().cpu()
    return elements.view(-1, num_heads, layout.head_size) * scales[:, :, None]


def _decoded(data: torch.Tensor, format: KvFormat) -> torch.Tensor:
    """Returns stored elements [num_blocks, ...] as f32 on the host, without their scales."""
    data = data.cpu().contiguous()
    if format is KvFormat.INT4:
        return torch.stack([data & 15, data >> 4], dim=-1).flatten(-2).float() * 2 - 15
    return (data.view(torch.float8_e4m3fn) if format is KvFormat.FP8 else data).float()


def hadamard(size: int) -> torch.Tensor:
    """Returns the transform, [size, size] f32: 1 and -1 in diagonal blocks as large as the power of two in size."""
    run = size & -size
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < run:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)], 0)
    return torch.block_diag(*[matrix] * (size // run))


def softmax_attention(
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    scale: float = 0.125,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    sees_all: bool = False,
) -> torch.Tensor:
    """Returns [T, H, D] f32 for queries [T, H, D] of the last positions of keys and values [S, G, D]."""
    num_rows, context = len(queries), len(keys)
    keys, values = (x.float().repeat_interleave(queries.shape[1] // x.shape[1], 1) for x in (keys, values))
    scores = torch.einsum("qhd,khd->hqk", queries.float(), keys) * scale
    if soft_cap is not None:
        scores = soft_cap * torch.tanh(scores / soft_cap)
    positions, seen = torch.arange(context - num_rows, context)[:, None], torch.arange(context)[None, :]
    is_hidden = (seen > positions) & (not sees_all)
    if window is not None:
        is_hidden |= (seen - positions).abs() >= window
    scores = scores.masked_fill(is_hidden.to(scores.device), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.cpu()[:, None, None].expand(-1, num_rows, 1)], dim=-1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., :context], values)


@dataclass
class Entry:
    """A chunk: the last num_rows of its context positions are computed."""

    context: int
    num_rows: int


@dataclass
class Scene:
    """A pool filled for the entries, whose tables have shuffled blocks, and queries [T, H * D]."""

    pool: KvPool
    shape: AttentionShape
    entries: list[Entry]
    tables: torch.Tensor
    queries: torch.Tensor
    device: str

    @property
    def num_rows(self) -> int:
        return sum(entry.num_rows for entry in self.entries)

    def rows(self, index: int) -> slice:
        begin = sum(entry.num_rows for entry in self.entries[:index])
        return slice(begin, begin + self.entries[index].num_rows)

    def prepared(
        self,
        *,
        max_partial_rows: int = 256,
        padding_rows: int = 0,
        padding_entries: int = 0,
        window: int | None = None,
        sees_all: bool = False,
    ) -> tuple[AttentionStep, AttentionPlan, AttentionSpace]:
        """Returns the step of the entries, its plan and space for it."""
        num_rows = self.num_rows + padding_rows
        begins = [0]
        for entry in self.entries:
            begins.append(begins[-1] + entry.num_rows)
        begins += [begins[-1]] * padding_entries
        contexts = [entry.context for entry in self.entries] + [0] * padding_entries
        tables = torch.cat([self.tables, self.tables.new_full((padding_entries, self.tables.shape[1]), 10**6)])
        step = AttentionStep(tables.to(self.device), i32(begins, self.device), i32(contexts, self.device))
        plan = AttentionPlan(
            self.shape, max_rows=num_rows, max_entries=len(contexts), max_partial_rows=max_partial_rows, window=window,
            device=self.device, sees_all=sees_all,
        )  # fmt: skip
        plan.update(step, num_rows)
        return step, plan, AttentionSpace(self.shape, max_partial_rows, self.device)

    def attend(
        self,
        *,
        padding_rows: int = 0,
        out: torch.Tensor | None = None,
        decode_only: bool = False,
        scale: float = 0.125,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """Returns attention in layer 1, [T + padding, H * D]. options: of `prepared`."""
        queries = torch.cat([self.queries, self.queries.new_full((padding_rows, self.queries.shape[1]), torch.nan)])
        prepared = self.prepared(padding_rows=padding_rows, **options)
        common = queries.to(self.device), self.pool, 1, *prepared, scale
        if self.pool.layout.latent_size is not None:
            return latent_attention(*common, out=out, decode_only=decode_only)
        return paged_attention(*common, soft_cap, out=out, decode_only=decode_only, sinks=sinks)

    def slots(self, index: int) -> torch.Tensor:
        positions = torch.arange(self.entries[index].context)
        size = self.pool.layout.block_size
        return self.tables[index].long()[positions // size] * size + positions % size

    def expected(self, **options: Any) -> torch.Tensor:
        """Returns [T, H * D] f32 from `softmax_attention` with these options."""
        keys, values = stored(self.pool, 1)
        mixed = []
        for index, entry in enumerate(self.entries):
            queries = self.queries[self.rows(index)].float().view(entry.num_rows, -1, keys.shape[-1])
            key, value = (x[self.slots(index)] for x in (keys, values))
            key[0] += first_keys(self.pool, 1)[self.tables[index, 0]]
            mixed.append(softmax_attention(queries, key, value, **options))
        result = torch.cat(mixed)
        if self.pool.format.is_transformed:
            size = self.shape.head_size
            result = result @ hadamard(size) / (size & -size)
        return result.flatten(1)


def make_scene(
    entries: list[tuple[int, int]],
    *,
    device: str,
    num_heads: int = 2,
    num_kv_heads: int = 1,
    head_size: int = 32,
    block_size: int = 16,
    format: str = "bf16",
    seed: int = 0,
    is_exact: bool = False,
    latent_size: int | None = None,
) -> Scene:
    """Makes a scene. entries: (context, rows) each. The whole pool is filled with random elements.

    is_exact: whole numbers so small that the products and sums of every tile are exact in f32.
    """
    generator = torch.Generator().manual_seed(seed)
    num_blocks = sum(-(-context // block_size) for context, _ in entries) + 1
    pool = make_pool(
        format, device, num_blocks=num_blocks, block_size=block_size, num_kv_heads=num_kv_heads, head_size=head_size,
        latent_size=latent_size,
    )  # fmt: skip
    _fill(pool, generator, is_exact)
    order = torch.randperm(num_blocks, generator=generator).int()
    tables = torch.full((len(entries), max(-(-context // block_size) for context, _ in entries)), 10**6).int()
    begin = 0
    for index, (context, _) in enumerate(entries):
        num_table = -(-context // block_size)
        tables[index, :num_table] = order[begin : begin + num_table]
        begin += num_table
    num_rows = sum(rows for _, rows in entries)
    if latent_size is not None:
        shape = latent_shape(num_heads, latent_size)
    else:
        rows = whole_rows_of(card.card_of(torch.device(device)))
        shape = AttentionShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size, whole_rows=rows)
    if is_exact:
        queries = torch.randint(0, 2, (num_rows, num_heads * head_size), generator=generator).float()
    else:
        queries = torch.randn(num_rows, num_heads * head_size, generator=generator)
    chunks = [Entry(*entry) for entry in entries]
    return Scene(pool, shape, chunks, tables, queries.to(activation_dtype(format)), device)


def _fill(pool: KvPool, generator: torch.Generator, is_exact: bool) -> None:
    layout = pool.layout
    shape = (pool.num_blocks, layout.num_elements)
    if layout.format is KvFormat.INT8:
        largest = 1 if is_exact else 127
        elements = torch.randint(-largest, largest + 1, shape, generator=generator)
    elif layout.format is KvFormat.INT4:
        elements = torch.randint(0, 256, shape, generator=generator)
    elif layout.format is KvFormat.FP8:
        # All codes except those of NaN.
        elements = torch.randint(0, 127, shape, generator=generator) + 128 * torch.randint(
            0, 2, shape, generator=generator
        )
    elif is_exact:
        elements = torch.randint(-1, 2, shape, generator=generator).float()
    else:
        elements = torch.randn(shape, generator=generator)
    pool.elements(1)[:, : shape[1]] = elements.to(layout.format.storage_dtype)
    if layout.format.has_scales:
        size = (pool.num_blocks, 2 * layout.num_kv_heads * layout.block_size)
        largest = {KvFormat.INT8: 127, KvFormat.INT4: 15, KvFormat.FP8: 448}[layout.format]
        scales = (torch.rand(size, generator=generator) + 0.5) * 2 / largest
        if is_exact:
            scales = torch.ones(size)
        pool.scales(1)[:, : size[1]] = scales.bfloat16()
    if layout.format.has_first_keys:
        begin, size = layout.first_keys_offset, layout.num_kv_heads * layout.row_elements
        pool.elements(1)[:, begin : begin + size] = torch.randint(0, 256, (pool.num_blocks, size), generator=generator)
        begin = layout.first_scales_offset
        pool.scales(1)[:, begin : begin + layout.num_kv_heads] = 1.0 if is_exact else 0.125
