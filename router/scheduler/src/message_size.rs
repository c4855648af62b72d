//! Bounds of a step, so that neither its plan nor its result exceeds the limit of a message.
//!
//! A message beyond its limit ends the Step stream as a crash of the shard does: every sequence would become a suspect,
//! whichever one made the message large. Each size below is an upper bound in the encoding of Protocol Buffers.

use trunkline_contract::{
    MAX_ERROR_MESSAGE_BYTES, MAX_MASK_PENALTIES, MAX_PLAN_MESSAGE_BYTES, MAX_RESULT_MESSAGE_BYTES,
    SamplingParams, TokenMask, range,
};

use crate::event::ShardLimits;
use crate::plan::SequenceStart;

/// The most tokens of a sequence, prompt and output.
pub const MAX_SEQUENCE_TOKENS: u32 = 16 << 20;
/// The most bytes of a plan's starts if there are several. The shard reads them between two steps.
pub const MAX_STARTS_BYTES: u64 = 4 << 20;

/// The most slots for adapters, each of which may have a load in a plan and an outcome in a result.
pub const MAX_ADAPTER_SLOTS: u32 = 1024;
/// The most bytes of an adapter's path.
pub const MAX_ADAPTER_PATH_BYTES: usize = 4096;

/// A tag, whose field number is below 2048.
const TAG: u64 = 2;
const U32: u64 = TAG + 5;
const U64: u64 = TAG + 10;
const F32: u64 = TAG + 4;
/// The tag and the length of a message, a text or a list.
const NESTED: u64 = TAG + 5;

/// A row of logits in a result: a token or a score, with the likeliest tokens.
const ROW_BYTES: u64 = NESTED + U32 + F32 + range::MAX_TOP_LOGPROBS as u64 * (NESTED + U32 + F32);
/// A chunk in a result, without rows and the elements of a vector.
const CHUNK_RESULT_BYTES: u64 =
    NESTED + U64 + U32 + NESTED + NESTED + U32 + NESTED + MAX_ERROR_MESSAGE_BYTES as u64;
/// The rest of a result: numbers of the step, and outcomes of transfers.
const RESULT_REST_BYTES: u64 = 1 << 20;
/// A chunk in a plan, without masks and the blocks of a start.
const CHUNK_PLAN_BYTES: u64 = 2 << 10;
/// The rest of a plan: its starts, or the largest one, and transfers.
const PLAN_REST_BYTES: u64 = 96 << 20;

/// The load of an adapter in a plan, and its outcome in a result.
const LOAD_BYTES: u64 = NESTED + U32 + NESTED + MAX_ADAPTER_PATH_BYTES as u64 + NESTED + 32;
const LOAD_OUTCOME_BYTES: u64 = NESTED + U32 + NESTED + MAX_ERROR_MESSAGE_BYTES as u64;

fn num_adapter_slots(limits: &ShardLimits) -> u64 {
    limits.num_adapter_slots.min(MAX_ADAPTER_SLOTS).into()
}

/// The bytes of a result that its chunks, rows and the rest leave to vectors, or to more chunks.
fn result_room(limits: &ShardLimits, taken: u64) -> u64 {
    let taken = taken + num_adapter_slots(limits) * LOAD_OUTCOME_BYTES;
    (MAX_RESULT_MESSAGE_BYTES as u64).saturating_sub(taken)
}

/// The bytes of rows and chunks in a result of `num_sequences` sequences, which has as many rows.
const fn result_bytes(num_sequences: u32) -> u64 {
    RESULT_REST_BYTES + num_sequences as u64 * (CHUNK_RESULT_BYTES + ROW_BYTES)
}

const fn vector_bytes(vector_size: u32) -> u64 {
    4 * vector_size as u64
}

/// The largest vectors of which a result holds at least one.
pub const MAX_VECTOR_SIZE: u32 = {
    let taken = result_bytes(1) + MAX_ADAPTER_SLOTS as u64 * LOAD_OUTCOME_BYTES;
    ((MAX_RESULT_MESSAGE_BYTES as u64 - taken) / 4) as u32
};

/// Returns the most sequences of a step, so that messages have room for a mask, a late mask and a row of each.
pub fn max_step_sequences(limits: &ShardLimits) -> u32 {
    let mask_bytes = (TokenMask::num_bytes(limits.vocab_size) + 8 * MAX_MASK_PENALTIES) as u64;
    let of_plan = (MAX_PLAN_MESSAGE_BYTES as u64 - PLAN_REST_BYTES - num_adapter_slots(limits) * LOAD_BYTES)
        / (CHUNK_PLAN_BYTES + 2 * (NESTED + U64 + U32 + NESTED + mask_bytes));
    let room = result_room(limits, vector_bytes(limits.vector_size) + RESULT_REST_BYTES);
    let of_result = room / (CHUNK_RESULT_BYTES + ROW_BYTES);
    limits.max_step_sequences.min(of_plan.min(of_result) as u32).max(1)
}

/// Returns the most vectors that a step may report.
pub fn max_vectors(limits: &ShardLimits) -> u32 {
    let room = result_room(limits, result_bytes(limits.max_step_sequences));
    (room / vector_bytes(limits.vector_size).max(1)).min(u64::from(u32::MAX)) as u32
}

/// Returns the bytes of the start of a sequence with `num_tokens` known tokens, and of its blocks. `last`: the start
/// before it in the plan, which has the same mask if both are choices of one request.
pub(crate) fn start_bytes(
    num_tokens: u32,
    sampling: &SamplingParams,
    last: Option<&SequenceStart>,
    limits: &ShardLimits,
) -> u64 {
    const PARAMS_BYTES: u64 = 512 + U32 + F32;
    let token_bytes = u64::from(limits.vocab_size.max(2).ilog2() / 7 + 1);
    let num_blocks = num_tokens.div_ceil(limits.block_size);
    let last_mask = last.and_then(|last| last.sampling.as_ref()).map(|last| &last.allowed_tokens[..]);
    let mask = sampling.allowed_tokens.as_ref().filter(|mask| last_mask != Some(&mask.0[..]));
    PARAMS_BYTES
        + u64::from(num_tokens) * token_bytes
        + u64::from(num_blocks) * 5
        + sampling.end_token_ids.len() as u64 * 5
        + sampling.logit_bias.len() as u64 * (NESTED + U32 + F32)
        + mask.map_or(0, |mask| mask.0.len() as u64)
}
