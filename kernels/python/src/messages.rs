//! Converts between the messages of `shard.proto` and what the executor takes and returns.

use prost::{DecodeError, Message};
use pyo3::PyResult;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::pyfunction;
use trunkline_contract::proto::{self, sequence_result::Outcome};
use trunkline_contract::{BlockKey, KEY_BYTES, MAX_ERROR_MESSAGE_BYTES, SamplingParams};
use trunkline_kernels::executor::{Chunk, Executor, SequenceFailure, SequenceResult};

use crate::failure::Failure;

/// Reads a message. Fails with `ValueError`.
pub(super) fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M, Failure> {
    let invalid = |error: DecodeError| PyValueError::new_err(format!("no message of shard.proto: {error}"));
    Ok(M::decode(bytes).map_err(invalid)?)
}

/// Reads a block's key. Fails with `ValueError`.
pub(super) fn block_key(bytes: &[u8]) -> PyResult<BlockKey> {
    let key = <[u8; KEY_BYTES]>::try_from(bytes).map_err(|_| {
        PyValueError::new_err(format!("a key has {} bytes, expected {KEY_BYTES}", bytes.len()))
    })?;
    Ok(BlockKey::from_bytes(key))
}

/// Fails with `ValueError` if a parameter of `SamplingParams`, given as its bytes, is outside its range.
#[pyfunction]
pub(super) fn check_sampling(sampling: &[u8]) -> PyResult<()> {
    let params = SamplingParams::from(decode::<proto::SamplingParams>(sampling)?);
    params.check().map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns the bytes of the `SamplingParams` that choose the likeliest token and change no logit.
#[pyfunction]
pub(super) fn neutral_sampling() -> Vec<u8> {
    SamplingParams::default().into_bytes()
}

pub(super) fn chunk(message: &proto::Chunk) -> Chunk {
    Chunk {
        sequence_id: message.sequence_id,
        first_position: message.first_position,
        num_tokens: message.num_tokens,
        new_block_ids: message.new_block_ids.clone(),
        sample: message.sample,
        score: message.score,
        draft_token_ids: message.draft_token_ids.clone(),
        draft_masks: message.draft_masks.iter().map(|mask| mask.to_vec()).collect(),
    }
}

/// Joins what the executor reports of its last step, all of it in the order of the chunks: one result for each chunk
/// that samples, scores or failed.
pub(super) fn step_result(
    executor: &Executor,
    chunks: &[proto::Chunk],
    results: &[SequenceResult],
) -> proto::StepResult {
    let mut results = results.iter().peekable();
    let mut scores = executor.scores().iter().peekable();
    let mut vectors = executor.vectors().iter().peekable();
    let mut sequences = Vec::with_capacity(chunks.len());
    for &proto::Chunk { sequence_id, .. } in chunks {
        let first = results.next_if(|result| result.sequence_id == sequence_id);
        let vector = vectors.next_if(|vector| vector.sequence_id == sequence_id);
        let scored = scores.next_if(|scores| scores.sequence_id == sequence_id);
        if first.is_none() && vector.is_none() && scored.is_none() {
            continue;
        }
        let mut sequence = proto::SequenceResult { sequence_id, ..Default::default() };
        sequence.outcome = first.map(|first| match &first.outcome {
            Ok(token) => Outcome::Token(sampled(token.token_id, token.logprob, &token.top_logprobs)),
            Err(failure) => Outcome::Error(error(failure)),
        });
        while let Some(more) = results.next_if(|result| result.sequence_id == sequence_id) {
            let token = more.outcome.iter();
            sequence
                .more_tokens
                .extend(token.map(|token| sampled(token.token_id, token.logprob, &token.top_logprobs)));
        }
        sequence.vector = vector.map_or_else(Vec::new, |vector| vector.values.clone());
        let scores = scored.iter().flat_map(|chunk| &chunk.tokens);
        sequence.scores = scores
            .map(|token| proto::PromptTokenLogprob {
                logprob: token.logprob,
                rank: token.rank,
                top_logprobs: likeliest(&token.top_logprobs),
            })
            .collect();
        sequences.push(sequence);
    }
    proto::StepResult { sequences, ..Default::default() }
}

fn sampled(token_id: u32, logprob: f32, top_logprobs: &[(u32, f32)]) -> proto::SampledToken {
    proto::SampledToken { token_id, logprob, top_logprobs: likeliest(top_logprobs) }
}

fn likeliest(tokens: &[(u32, f32)]) -> Vec<proto::TokenLogprob> {
    tokens.iter().map(|&(token_id, logprob)| proto::TokenLogprob { token_id, logprob }).collect()
}

fn error(failure: &SequenceFailure) -> proto::SequenceError {
    let code = match failure {
        SequenceFailure::NotFinite(_) => proto::SequenceErrorCode::NotFinite,
        SequenceFailure::InvalidPlan(_) => proto::SequenceErrorCode::InvalidPlan,
        SequenceFailure::Unread(_) => proto::SequenceErrorCode::UnreadWeights,
    };
    proto::SequenceError { code: code.into(), message: cut(failure.message()).to_owned() }
}

/// Cuts a text after the last character that ends within `MAX_ERROR_MESSAGE_BYTES`.
fn cut(text: &str) -> &str {
    let is_end = |&end: &usize| text.is_char_boundary(end);
    &text[..(0..=text.len().min(MAX_ERROR_MESSAGE_BYTES)).rev().find(is_end).unwrap_or(0)]
}
