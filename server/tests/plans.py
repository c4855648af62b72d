"""Parts of plans, with their fields in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trunkline_server._proto.shard_pb2 import BlockCopy, BlockRestore, BlockStore, Chunk, Restore


def new_chunk(
    sequence_id: int,
    first_position: int,
    num_tokens: int,
    new_block_ids: Iterable[int],
    sample: bool = False,
    stores: Iterable[BlockStore] = (),
    **others: Any,
) -> Chunk:
    return Chunk(
        sequence_id=sequence_id,
        first_position=first_position,
        num_tokens=num_tokens,
        new_block_ids=new_block_ids,
        sample=sample,
        stores=stores,
        **others,
    )


def changed(chunk: Chunk, **changes: Any) -> Chunk:
    """Returns a copy with other values in some fields."""
    copy = Chunk()
    copy.CopyFrom(chunk)
    for name in changes:
        copy.ClearField(name)
    copy.MergeFrom(Chunk(**changes))
    return copy


def new_copy(source_block_id: int, destination_block_id: int, num_tokens: int) -> BlockCopy:
    return BlockCopy(source_block_id=source_block_id, destination_block_id=destination_block_id, num_tokens=num_tokens)


def new_store(block_index: int, slot: int) -> BlockStore:
    return BlockStore(block_index=block_index, slot=slot)


def new_block_restore(slot: int, block_id: int, key: bytes, base_only: bool = False) -> BlockRestore:
    return BlockRestore(slot=slot, block_id=block_id, key=key, base_only=base_only)


def new_restore(restore_id: int, blocks: Iterable[BlockRestore]) -> Restore:
    return Restore(restore_id=restore_id, blocks=blocks)
