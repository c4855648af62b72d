"""Parts of plans, with their fields in order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from google.protobuf.message import Message
from trunkline_server._proto.shard_pb2 import (
    BlockCopy,
    BlockRestore,
    BlockStore,
    Chunk,
    PooledPrompt,
    Restore,
    SamplingParams,
    SequenceStart,
    TokenBias,
)

AnyMessage = TypeVar("AnyMessage", bound=Message)


def new_start(
    sequence_id: int,
    token_ids: Iterable[int],
    num_prompt_tokens: int,
    sampling: SamplingParams,
    root_key: bytes = b"",
    *,
    pool: int | None = None,
) -> SequenceStart:
    """pool: the position of the second of two texts, or 0, if the sequence gets a vector."""
    return SequenceStart(
        sequence_id=sequence_id,
        token_ids=token_ids,
        num_prompt_tokens=num_prompt_tokens,
        sampling=sampling,
        root_key=root_key,
        pooled=None if pool is None else PooledPrompt(second_text=pool),
    )


def new_biases(*pairs: tuple[int, float]) -> list[TokenBias]:
    return [TokenBias(token_id=token_id, bias=bias) for token_id, bias in pairs]


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


def changed(message: AnyMessage, **changes: Any) -> AnyMessage:
    """Returns a copy with other values in some fields."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name in changes:
        copy.ClearField(name)
    copy.MergeFrom(type(message)(**changes))
    return copy


def new_copy(source_block_id: int, destination_block_id: int, num_tokens: int) -> BlockCopy:
    return BlockCopy(source_block_id=source_block_id, destination_block_id=destination_block_id, num_tokens=num_tokens)


def new_store(block_index: int, slot: int) -> BlockStore:
    return BlockStore(block_index=block_index, slot=slot)


def new_block_restore(slot: int, block_id: int, key: bytes, base_only: bool = False) -> BlockRestore:
    return BlockRestore(slot=slot, block_id=block_id, key=key, base_only=base_only)


def new_restore(restore_id: int, blocks: Iterable[BlockRestore]) -> Restore:
    return Restore(restore_id=restore_id, blocks=blocks)
