"""K and V of all layers in blocks on the device: layout, element formats, sizes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch

from trunkline_server.backends.cuda.key_scaling import KeyScaling
from trunkline_server.errors import InvalidArgument

MIN_BLOCK_SIZE = 16
MAX_BLOCK_SIZE = 128
# Pieces begin at multiples of it, so that rows are read in whole 16-byte loads and blocks share no memory sectors.
_PIECE_ALIGNMENT = 128
_SCALE_BYTES = 2


class KvFormat(Enum):
    """Storage formats for elements of K and V. Scales are bf16, one for each position, head, and K or V.

    fp8: e4m3; the head's largest magnitude becomes 448. int8: the largest becomes 127. int4: 16 levels at odd multiples
    of half a step, two elements per byte; the step minimises the squared error of its head. Before int8 and int4, heads
    of K and V are multiplied by the Walsh-Hadamard matrix, which spreads a large channel over all of them. Queries are
    transformed alike, and outputs back. Positions share no scale, so what is stored does not depend on how a sequence
    is chunked.

    int4's keys are first shifted and scaled by channel, see `KeyScaling`. Many heads mostly attend to position 0, so
    the rounding error of its key is stored in another four bits.
    """

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def has_scales(self) -> bool:
        return self in (KvFormat.FP8, KvFormat.INT8, KvFormat.INT4)

    @property
    def is_transformed(self) -> bool:
        """True if heads are multiplied by the Walsh-Hadamard matrix before they are rounded."""
        return self in (KvFormat.INT8, KvFormat.INT4)

    @property
    def has_first_keys(self) -> bool:
        """True if the key at position 0 is stored more exactly than others."""
        return self is KvFormat.INT4

    @property
    def storage_dtype(self) -> torch.dtype:
        """The dtype of the pool's elements as kernels address them; int4 is addressed by byte."""
        return _STORAGE[self]


_STORAGE = {
    KvFormat.F32: torch.float32,
    KvFormat.F16: torch.float16,
    KvFormat.BF16: torch.bfloat16,
    KvFormat.FP8: torch.uint8,
    KvFormat.INT8: torch.int8,
    KvFormat.INT4: torch.uint8,
}


@dataclass(frozen=True, kw_only=True)
class KvLayout:
    """Layout of a block. A *piece* is the part of one block that belongs to one layer:

        K elements [G, B, row] | V elements [G, B, row] | K scales [G, B] | V scales [G, B] | first keys

    padded to a multiple of 128 bytes. First keys, if the format has them, are elements [G, row] and scales [G] of a
    number that is added to the first key of the block if that is position 0 of a sequence. In other blocks they have
    no meaning.

    With latent attention (`latent_size`), a key's last elements are its value, and there is no V.

    The positions of a head are contiguous, so a tile of attention is one run of B * row elements per block, and a piece
    is one run of bytes for copies and for other tiers. Raises InvalidArgument for sizes that the kernels do not
    support.
    """

    block_size: int
    num_kv_heads: int
    head_size: int
    format: KvFormat
    latent_size: int | None = None

    def __post_init__(self) -> None:
        size = self.block_size
        if not MIN_BLOCK_SIZE <= size <= MAX_BLOCK_SIZE or size & (size - 1):
            raise InvalidArgument(
                f"block size is {size}, must be a power of two from {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}"
            )
        if self.latent_size is not None:
            for what, features in (
                ("latent", self.latent_size),
                ("rotated part of a key", self.head_size - self.latent_size),
            ):
                if not 16 <= features <= 512 or features & (features - 1):
                    raise InvalidArgument(f"the {what} has {features} features, must be a power of two from 16 to 512")
            if self.format not in (KvFormat.F32, KvFormat.F16, KvFormat.BF16):
                raise InvalidArgument(
                    f"`--kv-cache-dtype` is {self.format.value}, but the cuda backend keeps latents as bf16 or f16",
                    hint="use auto",
                )
            return
        if self.head_size % 16 or not 16 <= self.head_size <= 256:
            raise InvalidArgument(f"head size is {self.head_size}, must be a multiple of 16 up to 256")

    @property
    def row_elements(self) -> int:
        """Number of elements of the storage dtype in one head of one position."""
        return self.head_size // 2 if self.format is KvFormat.INT4 else self.head_size

    @property
    def values_offset(self) -> int:
        """Offset of V in a piece, in elements; the number of K's elements."""
        return self.num_kv_heads * self.block_size * self.row_elements

    @property
    def num_elements(self) -> int:
        """Number of elements of K and V in a piece."""
        return (2 if self.latent_size is None else 1) * self.values_offset

    @property
    def scales_offset_bytes(self) -> int:
        return self.num_elements * self.format.storage_dtype.itemsize

    @property
    def first_keys_offset(self) -> int:
        """Offset of the first keys in a piece, in elements."""
        scales = 2 * self.num_kv_heads * self.block_size * _SCALE_BYTES if self.format.has_scales else 0
        return (self.scales_offset_bytes + scales) // self.format.storage_dtype.itemsize

    @property
    def first_scales_offset(self) -> int:
        """Offset of the first keys' scales from a piece's first scale, in scales."""
        return 2 * self.num_kv_heads * self.block_size + self.num_kv_heads * self.row_elements // _SCALE_BYTES

    @property
    def piece_bytes(self) -> int:
        size = self.first_keys_offset * self.format.storage_dtype.itemsize
        if self.format.has_first_keys:
            size += self.num_kv_heads * (self.row_elements + _SCALE_BYTES)
        return -(-size // _PIECE_ALIGNMENT) * _PIECE_ALIGNMENT

    @property
    def piece_elements(self) -> int:
        """Distance between the pieces of neighbouring blocks, in elements."""
        return self.piece_bytes // self.format.storage_dtype.itemsize

    @property
    def piece_scales(self) -> int:
        """Distance between the pieces of neighbouring blocks, in scales."""
        return self.piece_bytes // _SCALE_BYTES


class KvPool:
    """All pieces, [layers, num_blocks, piece_bytes] in one allocation, zero at first; slot = block_id * B + offset.

    `rope_and_write_kv` and `copy_block` write it, `paged_attention` reads it. key_scaling: None rounds keys unscaled.
    """

    def __init__(
        self,
        layout: KvLayout,
        *,
        num_layers: int,
        num_blocks: int,
        device: torch.device | str,
        key_scaling: KeyScaling | None = None,
    ) -> None:
        self.layout, self.key_scaling = layout, key_scaling
        self.num_layers, self.num_blocks = num_layers, num_blocks
        self.pieces = torch.zeros(num_layers, num_blocks, layout.piece_bytes, dtype=torch.uint8, device=device)

    @property
    def format(self) -> KvFormat:
        return self.layout.format

    @property
    def bytes_per_block(self) -> int:
        return self.num_layers * self.layout.piece_bytes

    def elements(self, layer: int) -> torch.Tensor:
        """Returns [num_blocks, piece_elements] in the storage dtype; V begins at `values_offset`."""
        return self.pieces[layer].view(self.format.storage_dtype)

    def scales(self, layer: int) -> torch.Tensor:
        """Returns bf16 [num_blocks, piece_scales - ...]: K's scales [G, B] of each block, then V's.

        A view that begins at the first block's scales; blocks are `piece_scales` apart. Meaningless if the format has
        none.
        """
        scales = self.pieces[layer].view(torch.bfloat16)
        return scales[:, self.layout.scales_offset_bytes // _SCALE_BYTES :] if self.format.has_scales else scales

    def copy_block(self, source_block_id: int, destination_block_id: int) -> None:
        """Copies one whole block; positions beyond a sequence's last one are never read."""
        self.pieces[:, destination_block_id].copy_(self.pieces[:, source_block_id])
