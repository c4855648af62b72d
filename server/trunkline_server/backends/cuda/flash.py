"""Optional use of flash-attn for long chunks of prompts, with `--numerics fast` if it is installed.

Its bits depend on how a prompt is chunked. Its block tables need another layout than the pool's (blocks of a multiple
of 256 positions, with the heads of a position side by side), so K and V of a chunk's context are first copied out of
their blocks. For long chunks this costs little compared with their attention.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from trunkline_server.backends.cuda.kv_pool import KvLayout, KvPool
    from trunkline_server.backends.cuda.step_input import Entry

# Modules of flash-attn 3 and 2. Both align the causal mask with the last key; a window counts keys before the query's.
MODULES = ("flash_attn_interface", "flash_attn")
FUNCTION = "flash_attn_func"
ARGUMENTS = ("softmax_scale", "causal", "window_size", "softcap")
# Shorter chunks use the backend's own kernels. Steps of no more rows always do and are replayed.
MIN_CHUNK_ROWS = 512
# Limit for the copied K and V of a chunk. Longer contexts use the backend's own kernels.
MAX_GATHERED_BYTES = 256 << 20
MAX_HEAD_SIZE = 256


@dataclass(frozen=True, slots=True)
class LongChunk:
    """A chunk that flash-attn computes. index: of its entry; [begin, end): its rows in the step; context: in tokens."""

    index: int
    begin: int
    end: int
    context: int


@dataclass(frozen=True)
class FlashAttention:
    """An installed flash-attn. name: package and version, for the log and the fingerprint."""

    name: str
    function: Callable[..., object]

    def long_chunks(self, entries: Sequence[Entry], layout: KvLayout) -> list[LongChunk]:
        """Returns the chunks of a step that flash-attn computes."""
        bytes_per_position = 2 * layout.num_kv_heads * layout.head_size * layout.format.storage_dtype.itemsize
        found, begin = [], 0
        for index, entry in enumerate(entries):
            num_rows = len(entry.token_ids)
            context = entry.first_position + num_rows
            if num_rows >= MIN_CHUNK_ROWS and context * bytes_per_position <= MAX_GATHERED_BYTES:
                found.append(LongChunk(index, begin, begin + num_rows, context))
            begin += num_rows
        return found

    def attend(
        self,
        query: torch.Tensor,
        pool: KvPool,
        layer: int,
        chunk: LongChunk,
        table: torch.Tensor,
        *,
        scale: float,
        window: int | None,
        soft_cap: float | None,
        out: torch.Tensor,
    ) -> None:
        """Computes attention of a chunk's rows of query [T, H * D] into the same rows of out. table: i32, of blocks."""
        layout = pool.layout
        num_rows = chunk.end - chunk.begin
        first_position = 0 if window is None else max(0, chunk.context - num_rows - window + 1)
        first_block = first_position // layout.block_size
        num_positions = chunk.context - first_block * layout.block_size
        keys, values = gather_kv(pool, layer, table[first_block:], num_positions)
        rows = query[chunk.begin : chunk.end].view(num_rows, -1, layout.head_size)
        found = self.function(
            rows[None], keys[None], values[None], softmax_scale=scale, causal=True,
            window_size=(-1, -1) if window is None else (window - 1, 0), softcap=soft_cap or 0.0,
        )  # fmt: skip
        # Some versions also return the sums of weights.
        mixed = found[0] if isinstance(found, tuple) else found
        assert isinstance(mixed, torch.Tensor)
        out[chunk.begin : chunk.end].copy_(mixed.reshape(num_rows, -1))


def gather_kv(pool: KvPool, layer: int, table: torch.Tensor, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns K and V [num_positions, G, D] of a layer, in the pool's dtype, which must have no scales.

    table: i32, the blocks of these positions in order. Reads and writes each element of these blocks once.
    """
    layout = pool.layout
    assert not pool.format.has_scales, "cannot gather elements with scales"
    heads = layout.num_kv_heads, layout.block_size, layout.head_size
    elements, size = pool.elements(layer), layout.values_offset
    parts = elements[:, :size], elements[:, size : 2 * size]
    blocks = table[: -(-num_positions // layout.block_size)]
    gathered = [x.view(len(x), *heads).transpose(1, 2).index_select(0, blocks).flatten(0, 1) for x in parts]
    return gathered[0][:num_positions], gathered[1][:num_positions]


def find_flash(
    layout: KvLayout, dtype: torch.dtype, *, is_fast: bool, has_sinks: bool = False, is_encoder: bool = False
) -> tuple[FlashAttention | None, str]:
    """Returns flash-attn if it can be used, and the reason for the choice, for the log."""
    if not is_fast:
        return None, "`--numerics exact`"
    if has_sinks:
        return None, "the model has attention sinks, which it does not compute"
    if is_encoder:
        return None, "the model is an encoder"
    if dtype not in (torch.bfloat16, torch.float16) or layout.format.storage_dtype != dtype:
        return None, f"K and V are {layout.format.value}, activations {dtype}"
    if layout.latent_size is not None:
        return None, "keys have latents"
    if layout.head_size > MAX_HEAD_SIZE:
        return None, f"head size {layout.head_size} is above {MAX_HEAD_SIZE}"
    reasons = []
    for name in MODULES:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            # This includes packages that were built for another version of torch.
            reasons.append(f"{name}: {error}")
            continue
        function = getattr(module, FUNCTION, None)
        if function is None or not set(ARGUMENTS) <= set(inspect.signature(function).parameters):
            reasons.append(f"{name}: no `{FUNCTION}` with {', '.join(ARGUMENTS)}")
            continue
        return FlashAttention(f"{name} {getattr(module, '__version__', '')}".strip(), function), "it is installed"
    return None, "; ".join(reasons)
