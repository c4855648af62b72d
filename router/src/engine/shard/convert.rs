//! Converts plans and results between the generated types and the scheduler's types, field by field.

use trunkline_scheduler::{
    BlockCopy, BlockId, BlockKey, BlockStore, Chunk, KEY_BYTES, Restore, RestoreOutcome, RestoredBlock,
    SampledToken, SequenceError, SequenceErrorCode, SequenceOutcome, SequenceResult, SequenceStart, SlotId,
    StepPlan, StepResult, StoreOutcome, TokenLogprob, TokenMask, TokenScore, Transfers,
};

use super::sampling::{sampling_from_proto, sampling_to_proto};
use super::{NamedMasks, ShardError, proto};

/// Converts a plan for the shard. `masks`: the named masks of the Step stream.
pub fn plan_to_proto(plan: StepPlan, masks: &mut NamedMasks) -> proto::StepPlan {
    proto::StepPlan {
        step_id: plan.step_id,
        ends: plan.ends,
        starts: plan.starts.into_iter().map(|start| start_to_proto(start, masks)).collect(),
        copies: plan
            .copies
            .into_iter()
            .map(|copy| proto::BlockCopy {
                source_block_id: copy.source_block_id,
                destination_block_id: copy.destination_block_id,
                num_tokens: copy.num_tokens,
            })
            .collect(),
        chunks: plan
            .chunks
            .into_iter()
            .map(|chunk| proto::Chunk {
                sequence_id: chunk.sequence_id,
                first_position: chunk.first_position,
                num_tokens: chunk.num_tokens,
                new_block_ids: chunk.new_block_ids,
                sample: chunk.sample,
                stores: chunk
                    .stores
                    .into_iter()
                    .map(|store| proto::BlockStore { block_index: store.block_index, slot: store.slot.0 })
                    .collect(),
                appended_token_ids: chunk.appended_token_ids,
                allowed_tokens: chunk.allowed_tokens.map_or_else(Vec::new, |mask| mask.0.to_vec()),
                awaits_mask: chunk.awaits_mask,
                score: chunk.score,
                draft_token_ids: chunk.draft_token_ids,
                draft_masks: chunk.draft_masks.into_iter().map(|mask| mask.0.to_vec()).collect(),
                num_own_drafts: chunk.num_own_drafts,
            })
            .collect(),
        restores: plan.restores.into_iter().map(restore_to_proto).collect(),
        discards: plan.discards.into_iter().map(|slot| slot.0).collect(),
        window_drops: plan.window_drops,
    }
}

fn restore_to_proto(restore: Restore) -> proto::Restore {
    let to_proto = |block: RestoredBlock| proto::BlockRestore {
        slot: block.slot.0,
        block_id: block.block.0,
        key: block.key.as_bytes().to_vec(),
        base_only: block.base_only,
    };
    proto::Restore {
        restore_id: restore.restore_id,
        blocks: restore.blocks.into_iter().map(to_proto).collect(),
    }
}

fn start_to_proto(mut start: SequenceStart, masks: &mut NamedMasks) -> proto::SequenceStart {
    let mask = start.sampling.allowed_tokens.take();
    let mut sampling = sampling_to_proto(start.sampling);
    if let Some(mask) = mask {
        (sampling.allowed_tokens, sampling.mask_id) = masks.write(&mask);
    }
    proto::SequenceStart {
        sequence_id: start.sequence_id,
        token_ids: start.token_ids,
        num_prompt_tokens: start.num_prompt_tokens,
        root_key: start.root_key.map_or_else(Vec::new, |key| key.as_bytes().to_vec()),
        sampling: Some(sampling),
        pooled: start.pooled.map(|second_text| proto::PooledPrompt { second_text }),
    }
}

/// Converts a plan as a shard does, after [`KnownMasks::resolve`](super::KnownMasks::resolve). Mock shards and the
/// replay of recorded conversations use it.
pub fn plan_from_proto(plan: proto::StepPlan) -> Result<StepPlan, ShardError> {
    let scored: Vec<u64> =
        plan.chunks.iter().filter(|chunk| chunk.score).map(|chunk| chunk.sequence_id).collect();
    let start = |start: proto::SequenceStart| {
        let is_scored = scored.contains(&start.sequence_id);
        start_from_proto(start, is_scored)
    };
    let starts = plan.starts.into_iter().map(start).collect::<Result<_, _>>()?;
    Ok(StepPlan {
        step_id: plan.step_id,
        ends: plan.ends,
        starts,
        copies: plan
            .copies
            .into_iter()
            .map(|copy| BlockCopy {
                source_block_id: copy.source_block_id,
                destination_block_id: copy.destination_block_id,
                num_tokens: copy.num_tokens,
            })
            .collect(),
        chunks: plan
            .chunks
            .into_iter()
            .map(|chunk| Chunk {
                sequence_id: chunk.sequence_id,
                first_position: chunk.first_position,
                num_tokens: chunk.num_tokens,
                new_block_ids: chunk.new_block_ids,
                sample: chunk.sample,
                stores: chunk
                    .stores
                    .into_iter()
                    .map(|store| BlockStore { block_index: store.block_index, slot: SlotId(store.slot) })
                    .collect(),
                appended_token_ids: chunk.appended_token_ids,
                allowed_tokens: (!chunk.allowed_tokens.is_empty())
                    .then(|| TokenMask(chunk.allowed_tokens.into())),
                awaits_mask: chunk.awaits_mask,
                score: chunk.score,
                draft_token_ids: chunk.draft_token_ids,
                draft_masks: chunk.draft_masks.into_iter().map(|mask| TokenMask(mask.into())).collect(),
                num_own_drafts: chunk.num_own_drafts,
            })
            .collect(),
        restores: plan.restores.into_iter().map(restore_from_proto).collect::<Result<_, _>>()?,
        discards: plan.discards.into_iter().map(SlotId).collect(),
        window_drops: plan.window_drops,
    })
}

fn restore_from_proto(restore: proto::Restore) -> Result<Restore, ShardError> {
    let from_proto = |block: proto::BlockRestore| {
        Ok(RestoredBlock {
            slot: SlotId(block.slot),
            key: key_from_proto(&block.key)?,
            block: BlockId(block.block_id),
            base_only: block.base_only,
        })
    };
    Ok(Restore {
        restore_id: restore.restore_id,
        blocks: restore.blocks.into_iter().map(from_proto).collect::<Result<_, ShardError>>()?,
    })
}

fn key_from_proto(bytes: &[u8]) -> Result<BlockKey, ShardError> {
    let bytes = <[u8; KEY_BYTES]>::try_from(bytes).map_err(|_| ShardError::InvalidMessage {
        detail: format!("a key has {} bytes, expected {KEY_BYTES}", bytes.len()),
    })?;
    Ok(BlockKey::from_bytes(bytes))
}

fn start_from_proto(start: proto::SequenceStart, is_scored: bool) -> Result<SequenceStart, ShardError> {
    let sampling = start.sampling.ok_or_else(|| ShardError::InvalidMessage {
        detail: format!("start of sequence {} has no `sampling`", start.sequence_id),
    })?;
    let root_key = match start.root_key.as_slice() {
        [] => None,
        bytes => Some(key_from_proto(bytes)?),
    };
    Ok(SequenceStart {
        root_key,
        sequence_id: start.sequence_id,
        token_ids: start.token_ids,
        num_prompt_tokens: start.num_prompt_tokens,
        sampling: sampling_from_proto(sampling, is_scored),
        pooled: start.pooled.map(|pooled| pooled.second_text),
    })
}

pub fn result_from_proto(result: proto::StepResult) -> StepResult {
    StepResult {
        step_id: result.step_id,
        sequences: result.sequences.into_iter().map(sequence_from_proto).collect(),
        device_time_us: result.device_time_us,
        draft_time_us: result.draft_time_us,
    }
}

pub fn transfers_from_proto(transfers: proto::Transfers) -> Transfers {
    let store = |outcome: proto::StoreOutcome| StoreOutcome {
        slot: SlotId(outcome.slot),
        is_stored: outcome.is_stored,
    };
    let restore = |outcome: proto::RestoreOutcome| RestoreOutcome {
        restore_id: outcome.restore_id,
        num_blocks: outcome.num_blocks,
        time_us: outcome.time_us,
    };
    Transfers {
        stores: transfers.stores.into_iter().map(store).collect(),
        restores: transfers.restores.into_iter().map(restore).collect(),
    }
}

fn sequence_from_proto(sequence: proto::SequenceResult) -> SequenceResult {
    use proto::sequence_result::Outcome;
    let sequence_id = sequence.sequence_id;
    let outcome = match sequence.outcome {
        Some(Outcome::Token(token)) => SequenceOutcome::Token(token_from_proto(token)),
        Some(Outcome::Error(error)) => SequenceOutcome::Error(SequenceError {
            code: match error.code() {
                proto::SequenceErrorCode::Unspecified => SequenceErrorCode::Unspecified,
                proto::SequenceErrorCode::NotFinite => SequenceErrorCode::NotFinite,
                proto::SequenceErrorCode::InvalidPlan => SequenceErrorCode::InvalidPlan,
            },
            message: error.message,
        }),
        None if !sequence.vector.is_empty() => SequenceOutcome::Vector(sequence.vector),
        None => SequenceOutcome::Computed,
    };
    let score = |score: proto::PromptTokenLogprob| TokenScore {
        logprob: score.logprob,
        rank: score.rank,
        top_logprobs: top_from_proto(score.top_logprobs),
    };
    let more_tokens = sequence.more_tokens.into_iter().map(token_from_proto).collect();
    SequenceResult {
        sequence_id,
        outcome,
        more_tokens,
        num_own_drafts: sequence.num_own_drafts,
        scores: sequence.scores.into_iter().map(score).collect(),
    }
}

fn token_from_proto(token: proto::SampledToken) -> SampledToken {
    SampledToken {
        token_id: token.token_id,
        logprob: token.logprob,
        top_logprobs: top_from_proto(token.top_logprobs),
    }
}

fn top_from_proto(top: Vec<proto::TokenLogprob>) -> Vec<TokenLogprob> {
    top.into_iter().map(|top| TokenLogprob { token_id: top.token_id, logprob: top.logprob }).collect()
}
