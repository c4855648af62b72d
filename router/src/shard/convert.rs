//! Plans and results between the generated types and the scheduler's plain ones, field by field.

use trunkline_scheduler::{
    BlockCopy, Chunk, SampledToken, SamplingParams, SequenceError, SequenceErrorCode, SequenceOutcome,
    SequenceResult, SequenceStart, StepPlan, StepResult, TokenLogprob,
};

use super::{ShardError, proto};

/// A plan on its way to the shard.
pub fn plan_to_proto(plan: StepPlan) -> proto::StepPlan {
    proto::StepPlan {
        step_id: plan.step_id,
        ends: plan.ends,
        starts: plan.starts.into_iter().map(start_to_proto).collect(),
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
            })
            .collect(),
    }
}

fn start_to_proto(start: SequenceStart) -> proto::SequenceStart {
    let sampling = start.sampling;
    proto::SequenceStart {
        sequence_id: start.sequence_id,
        token_ids: start.token_ids,
        num_prompt_tokens: start.num_prompt_tokens,
        sampling: Some(proto::SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed: sampling.seed,
            choice: sampling.choice,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_penalty: sampling.repetition_penalty,
            min_tokens: sampling.min_tokens,
            end_token_ids: sampling.end_token_ids,
            num_top_logprobs: sampling.num_top_logprobs,
            logprobs: sampling.logprobs,
        }),
    }
}

/// A plan as a shard reads it: for mock shards and for the replay of recorded conversations.
pub fn plan_from_proto(plan: proto::StepPlan) -> Result<StepPlan, ShardError> {
    Ok(StepPlan {
        step_id: plan.step_id,
        ends: plan.ends,
        starts: plan.starts.into_iter().map(start_from_proto).collect::<Result<_, _>>()?,
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
            })
            .collect(),
    })
}

fn start_from_proto(start: proto::SequenceStart) -> Result<SequenceStart, ShardError> {
    let sampling = start.sampling.ok_or_else(|| ShardError::InvalidMessage {
        detail: format!("start of sequence {} has no `sampling`", start.sequence_id),
    })?;
    Ok(SequenceStart {
        sequence_id: start.sequence_id,
        token_ids: start.token_ids,
        num_prompt_tokens: start.num_prompt_tokens,
        sampling: SamplingParams {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed: sampling.seed,
            choice: sampling.choice,
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_penalty: sampling.repetition_penalty,
            min_tokens: sampling.min_tokens,
            end_token_ids: sampling.end_token_ids,
            num_top_logprobs: sampling.num_top_logprobs,
            logprobs: sampling.logprobs,
        },
    })
}

/// A result on its way from the shard.
///
/// Fails if a sequence has neither token nor error: the contract asks for one of them.
pub fn result_from_proto(result: proto::StepResult) -> Result<StepResult, ShardError> {
    Ok(StepResult {
        step_id: result.step_id,
        sequences: result.sequences.into_iter().map(sequence_from_proto).collect::<Result<_, _>>()?,
        device_time_us: result.device_time_us,
    })
}

fn sequence_from_proto(sequence: proto::SequenceResult) -> Result<SequenceResult, ShardError> {
    use proto::sequence_result::Outcome;
    let sequence_id = sequence.sequence_id;
    let outcome = match sequence.outcome {
        Some(Outcome::Token(token)) => SequenceOutcome::Token(SampledToken {
            token_id: token.token_id,
            logprob: token.logprob,
            top_logprobs: token
                .top_logprobs
                .into_iter()
                .map(|top| TokenLogprob { token_id: top.token_id, logprob: top.logprob })
                .collect(),
        }),
        Some(Outcome::Error(error)) => SequenceOutcome::Error(SequenceError {
            code: match error.code() {
                proto::SequenceErrorCode::Unspecified => SequenceErrorCode::Unspecified,
                proto::SequenceErrorCode::NotFinite => SequenceErrorCode::NotFinite,
                proto::SequenceErrorCode::InvalidPlan => SequenceErrorCode::InvalidPlan,
            },
            message: error.message,
        }),
        None => {
            return Err(ShardError::InvalidMessage {
                detail: format!("result of sequence {sequence_id} has neither token nor error"),
            });
        }
    };
    Ok(SequenceResult { sequence_id, outcome })
}
