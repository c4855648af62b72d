"""Checks of the messages of shard.proto.

`read_request` checks everything that follows from one plan and the shard's limits. The engine checks what depends on
earlier plans (known sequences, consecutive step ids). A violation found here is a `PlanError`: the router is wrong, and
no part of the plan has run. A start that is wrong by itself is no such violation: only its sequence fails, and
`start_problem` says why.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trunkline_server import _kernels
from trunkline_server._proto import shard_pb2
from trunkline_server.backends.interface import BackendInfo, LateMasks, num_rows
from trunkline_server.errors import PlanError
from trunkline_server.named_masks import NamedMasks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trunkline_server._proto.shard_pb2 import Chunk, Restore

# Length of a block's key.
KEY_BYTES = 16
# Length of an adapter's content hash.
ADAPTER_HASH_BYTES = 32


def read_request(
    request: shard_pb2.StepRequest, limits: BackendInfo, late_masks: LateMasks, named_masks: NamedMasks
) -> shard_pb2.StepPlan | None:
    """Puts late masks into `late_masks`, then checks the plan and returns it, if there is one.

    named_masks: the named masks of the stream, which the plan's starts then hold as a whole. Returns None if the
    request holds only late masks. Raises PlanError.
    """
    for late in request.late_masks:
        late_masks.tell(late.sequence_id, named_masks.read(late, late.sequence_id))
    if request.HasField("plan"):
        _check_plan(request.plan, limits, named_masks)
        return request.plan
    if not request.late_masks:
        raise PlanError("step request has neither `plan` nor `late_masks`")
    return None


def start_problem(start: shard_pb2.SequenceStart, vocab_size: int) -> str | None:
    """Returns why the sequence cannot start, or None."""
    token_ids, sampling = start.token_ids, start.sampling
    if not token_ids:
        return "the sequence has no tokens"
    if not 1 <= start.num_prompt_tokens <= len(token_ids):
        return f"`num_prompt_tokens` is {start.num_prompt_tokens}, expected 1 to {len(token_ids)}"
    if not start.HasField("sampling"):
        return "the sequence has no `sampling`"
    if len(start.root_key) not in (0, KEY_BYTES):
        return f"`root_key` has {len(start.root_key)} bytes, expected {KEY_BYTES} or none"
    try:
        _kernels.check_sampling(sampling.SerializeToString())
    except ValueError as error:
        return str(error)
    num_mask_bytes, mask = -(-vocab_size // 8), sampling.allowed_tokens
    if max(token_ids) >= vocab_size:
        return f"a token id is not below the vocabulary size {vocab_size}"
    if max(sampling.end_token_ids, default=0) >= vocab_size:
        return f"an end token id is not below the vocabulary size {vocab_size}"
    if mask and len(mask) != num_mask_bytes:
        return f"a mask of {len(mask)} bytes, expected {num_mask_bytes}"
    if max((bias.token_id for bias in sampling.logit_bias), default=0) >= vocab_size:
        return f"a biased token id is not below the vocabulary size {vocab_size}"
    return None


def _check_plan(plan: shard_pb2.StepPlan, limits: BackendInfo, named_masks: NamedMasks) -> None:
    chunks = list(plan.chunks)
    _check_chunks(plan.step_id, chunks, limits)
    for restore in plan.restores:
        _check_restore(plan.step_id, restore, limits)
    for copy in plan.copies:
        _check_copy(plan.step_id, copy, limits)
    _check_slots(plan.step_id, chunks, plan.restores, plan.discards, limits)
    if plan.window_drops:
        _check_window_drops(plan.step_id, plan.window_drops, limits)
    if plan.adapter_loads:
        _check_adapter_loads(plan, limits)
    for start in plan.starts:
        if start.adapter_slot > limits.num_adapter_slots:
            raise PlanError(
                f"step {plan.step_id} starts a sequence with adapter slot {start.adapter_slot}, but there are "
                f"{limits.num_adapter_slots}"
            )
        if start.sequence_id == 0:
            raise PlanError(f"step {plan.step_id} starts a sequence with id 0")
        if start.sampling.mask_id:
            # A mask takes its name even if the sequence cannot start.
            start.sampling.allowed_tokens = named_masks.read(start.sampling, start.sequence_id)


def _check_chunks(step_id: int, chunks: Sequence[Chunk], limits: BackendInfo) -> None:
    if len(chunks) > limits.max_step_sequences:
        raise PlanError(
            f"step {step_id} has {len(chunks)} chunks, more than `max_step_sequences` ({limits.max_step_sequences})"
        )
    num_tokens = 0
    for chunk in chunks:
        num_positions = chunk.num_tokens
        if num_positions < 1:
            raise PlanError(f"step {step_id}: chunk of sequence {chunk.sequence_id} has no tokens")
        if chunk.awaits_mask and (not chunk.sample or chunk.allowed_tokens):
            raise PlanError(f"step {step_id}: chunk of sequence {chunk.sequence_id} awaits a mask that it cannot use")
        if chunk.draft_token_ids or chunk.draft_masks or chunk.num_own_drafts:
            _check_drafts(step_id, chunk, limits)
            num_positions = num_rows(chunk)
        num_tokens += num_positions
    if num_tokens > limits.max_step_tokens:
        raise PlanError(
            f"step {step_id} has {num_tokens} tokens, more than `max_step_tokens` ({limits.max_step_tokens})"
        )
    if len(chunks) > 1 and len({chunk.sequence_id for chunk in chunks}) != len(chunks):
        raise PlanError(f"step {step_id} has two chunks of one sequence")


def _check_drafts(step_id: int, chunk: Chunk, limits: BackendInfo) -> None:
    where = f"step {step_id}: chunk of sequence {chunk.sequence_id}"
    num_drafts = len(chunk.draft_token_ids)
    if num_drafts > limits.max_draft_tokens:
        raise PlanError(f"{where} has {num_drafts} drafts, more than `max_draft_tokens` ({limits.max_draft_tokens})")
    if not chunk.sample or chunk.awaits_mask:
        raise PlanError(f"{where} has drafts, but it samples nothing or under a late mask")
    if chunk.num_own_drafts > limits.max_own_drafts:
        raise PlanError(f"{where} wants {chunk.num_own_drafts} own drafts, more than {limits.max_own_drafts}")
    if chunk.num_own_drafts and (chunk.draft_token_ids or chunk.allowed_tokens):
        raise PlanError(f"{where} wants own drafts beside others or under a mask")
    num_masks = num_drafts if chunk.allowed_tokens else 0
    if len(chunk.draft_masks) != num_masks:
        raise PlanError(f"{where} has {len(chunk.draft_masks)} `draft_masks`, expected {num_masks}")


def _check_slots(
    step_id: int, chunks: Sequence[Chunk], restores: Sequence[Restore], discards: Sequence[int], limits: BackendInfo
) -> None:
    """Checks that each slot is in one transfer only: written or emptied once, or read. Raises PlanError."""
    written: list[int] = list(discards)
    for chunk in chunks:
        if not chunk.stores:
            continue
        num_full = (chunk.first_position + chunk.num_tokens) // limits.block_size
        for store in chunk.stores:
            if store.block_index >= num_full:
                raise PlanError(
                    f"step {step_id} stores block {store.block_index} of sequence {chunk.sequence_id}, but only "
                    f"{num_full} of its blocks are full"
                )
            written.append(store.slot)
    read = [block.slot for restore in restores if not restore.store_folder for block in restore.blocks]
    for slot in (*written, *read):
        if slot >= limits.num_store_slots:
            raise PlanError(f"step {step_id} names slot {slot}, but the store has {limits.num_store_slots}")
    if len(set(written)) != len(written) or not set(written).isdisjoint(read):
        raise PlanError(f"step {step_id} names one slot in two transfers")
    block_ids = [block.block_id for restore in restores for block in restore.blocks]
    if len(set(block_ids)) != len(block_ids):
        raise PlanError(f"step {step_id} restores two blocks onto one")


def _check_window_drops(step_id: int, window_drops: Sequence[int], limits: BackendInfo) -> None:
    if not limits.num_window_parts:
        raise PlanError(f"step {step_id} drops window parts, but blocks are in one piece")
    if (highest := max(window_drops)) >= limits.num_device_blocks:
        raise PlanError(
            f"step {step_id} drops the window part of block {highest}, but the pool has {limits.num_device_blocks} "
            "blocks"
        )
    if len(set(window_drops)) != len(window_drops):
        raise PlanError(f"step {step_id} drops the window part of one block twice")


def _check_adapter_loads(plan: shard_pb2.StepPlan, limits: BackendInfo) -> None:
    slots = [load.slot for load in plan.adapter_loads]
    if not all(1 <= slot <= limits.num_adapter_slots for slot in slots) or len(set(slots)) != len(slots):
        raise PlanError(
            f"step {plan.step_id} loads adapters into slots {slots}, expected different ones from 1 to "
            f"{limits.num_adapter_slots}"
        )
    for load in plan.adapter_loads:
        expected = ADAPTER_HASH_BYTES if load.path else 0
        if len(load.content_hash) != expected:
            raise PlanError(
                f"step {plan.step_id} loads adapter `{load.path}` with a hash of {len(load.content_hash)} bytes, "
                f"expected {expected}"
            )


def _check_restore(step_id: int, restore: Restore, limits: BackendInfo) -> None:
    where = f"step {step_id}: restore {restore.restore_id}"
    if not restore.blocks:
        raise PlanError(f"{where} has no blocks")
    if restore.store_folder and not limits.reads_other_stores:
        raise PlanError(f"{where} names a store of another shard, which this one does not read")
    for block in restore.blocks:
        if len(block.key) != KEY_BYTES:
            raise PlanError(f"{where} has a key of {len(block.key)} bytes, expected {KEY_BYTES}")
        if block.block_id >= limits.num_device_blocks:
            raise PlanError(
                f"{where} writes block {block.block_id}, but the pool has {limits.num_device_blocks} blocks"
            )


def _check_copy(step_id: int, copy: shard_pb2.BlockCopy, limits: BackendInfo) -> None:
    for block_id in (copy.source_block_id, copy.destination_block_id):
        if block_id >= limits.num_device_blocks:
            raise PlanError(
                f"step {step_id} copies block {block_id}, but the pool has {limits.num_device_blocks} blocks"
            )
    if copy.source_block_id == copy.destination_block_id:
        raise PlanError(f"step {step_id} copies block {copy.source_block_id} onto itself")
    if not 1 <= copy.num_tokens <= limits.block_size:
        raise PlanError(f"step {step_id} copies {copy.num_tokens} tokens of a block, expected 1 to {limits.block_size}")
