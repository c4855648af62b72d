//! The largest plans and results that the scheduler allows fit into a message.

use bytes::Bytes;
use prost::Message;
use trunkline_contract::{
    MAX_ERROR_MESSAGE_BYTES, MAX_MASK_PENALTIES, MAX_PLAN_MESSAGE_BYTES, MAX_RESULT_MESSAGE_BYTES, TokenMask,
    range,
};
use trunkline_engine::shard::proto::{self, sequence_result::Outcome};
use trunkline_scheduler::ShardLimits;
use trunkline_scheduler::message_size::{
    MAX_ADAPTER_PATH_BYTES, MAX_ADAPTER_SLOTS, MAX_SEQUENCE_TOKENS, MAX_STARTS_BYTES, MAX_VECTOR_SIZE,
    max_step_sequences, max_vectors,
};

/// More sequences than any step has.
const MANY: u32 = 1 << 20;

/// The limits of a step whose messages are as large as possible.
fn limits(vocab_size: u32, vector_size: u32) -> ShardLimits {
    let mut limits = ShardLimits {
        block_size: 16,
        num_blocks: 1 << 20,
        max_step_tokens: MANY,
        max_step_sequences: MANY,
        vocab_size,
        vector_size,
        windows: None,
        numerics: 0,
        max_draft_tokens: 16,
        max_own_drafts: 0,
        num_adapter_slots: 2 * MAX_ADAPTER_SLOTS,
        adapter_bytes: 0,
    };
    limits.max_step_sequences = max_step_sequences(&limits);
    limits
}

fn likeliest() -> Vec<proto::TokenLogprob> {
    vec![proto::TokenLogprob { token_id: u32::MAX, logprob: -1.0 }; range::MAX_TOP_LOGPROBS as usize]
}

fn token() -> proto::SampledToken {
    proto::SampledToken { token_id: u32::MAX, logprob: -1.0, top_logprobs: likeliest() }
}

/// The outcomes of a step.
#[derive(Clone, Copy)]
enum Outcomes {
    Tokens,
    /// One sequence is scored, and all others fail.
    Scores,
    /// As many vectors as fit, and tokens.
    Vectors,
}

fn result(limits: &ShardLimits, outcomes: Outcomes) -> proto::StepResponse {
    let num_sequences = limits.max_step_sequences as usize;
    let num_vectors = (max_vectors(limits) as usize).min(num_sequences);
    let sequence = |index: usize| {
        let mut sequence = proto::SequenceResult {
            sequence_id: u64::MAX,
            num_own_drafts: u32::MAX,
            ..proto::SequenceResult::default()
        };
        match outcomes {
            Outcomes::Scores if index == 0 => {
                let score =
                    proto::PromptTokenLogprob { logprob: -1.0, rank: u32::MAX, top_logprobs: likeliest() };
                sequence.scores = vec![score; num_sequences];
            }
            Outcomes::Scores => {
                let message = "x".repeat(MAX_ERROR_MESSAGE_BYTES);
                sequence.outcome = Some(Outcome::Error(proto::SequenceError { code: 2, message }));
            }
            Outcomes::Vectors if index < num_vectors => {
                sequence.vector = vec![1.0; limits.vector_size as usize];
            }
            Outcomes::Vectors | Outcomes::Tokens => sequence.outcome = Some(Outcome::Token(token())),
        }
        sequence
    };
    let result = proto::StepResult {
        step_id: u64::MAX,
        sequences: (0..num_sequences).map(sequence).collect(),
        device_time_us: u64::MAX,
        draft_time_us: u64::MAX,
    };
    let store = proto::StoreOutcome { slot: u32::MAX, is_stored: true };
    let restore = proto::RestoreOutcome { restore_id: u64::MAX, num_blocks: u32::MAX, time_us: u64::MAX };
    let adapter = proto::AdapterOutcome { slot: u32::MAX, problem: "x".repeat(MAX_ERROR_MESSAGE_BYTES) };
    let transfers = proto::Transfers {
        stores: vec![store; 1 << 14],
        restores: vec![restore; 1 << 14],
        adapters: vec![adapter; MAX_ADAPTER_SLOTS as usize],
    };
    proto::StepResponse { result: Some(result), transfers: Some(transfers) }
}

#[test]
fn the_largest_result_fits() {
    for vector_size in [0, 1, 1024, 8192, 1_000_000, MAX_VECTOR_SIZE] {
        let limits = limits(262_144, vector_size);
        assert!(vector_size > 8192 || limits.max_step_sequences >= 1024, "no step of today is made smaller");
        assert!(max_vectors(&limits) >= 1, "a vector of {vector_size} elements fits");
        for outcomes in [Outcomes::Tokens, Outcomes::Scores, Outcomes::Vectors] {
            let num_bytes = result(&limits, outcomes).encoded_len();
            assert!(num_bytes <= MAX_RESULT_MESSAGE_BYTES, "{num_bytes} bytes: {limits:?}");
        }
    }
    let limits = limits(262_144, 1_000_000);
    assert_eq!(max_vectors(&ShardLimits { max_step_sequences: 16, ..limits }), 3);
}

#[test]
fn the_largest_plan_fits() {
    for vocab_size in [32_000, 151_936, 262_144] {
        let limits = limits(vocab_size, 0);
        assert!(limits.max_step_sequences >= 1024, "no step of today is made smaller");
        let num_sequences = limits.max_step_sequences as usize;
        let mask = Bytes::from(vec![0xff; TokenMask::num_bytes(vocab_size) + 8 * MAX_MASK_PENALTIES]);
        let chunk = proto::Chunk {
            sequence_id: u64::MAX,
            first_position: u32::MAX,
            num_tokens: u32::MAX,
            sample: true,
            score: true,
            stores: vec![proto::BlockStore { block_index: u32::MAX, slot: u32::MAX }; 16],
            appended_token_ids: vec![vocab_size - 1; 256],
            allowed_tokens: mask.clone(),
            ..proto::Chunk::default()
        };
        let late = proto::LateMask { sequence_id: u64::MAX, allowed_tokens: mask, mask_id: 64 };
        let size_of = |message: &proto::StepRequest| message.encoded_len();
        // Repeated fields add up.
        let one = proto::StepPlan { chunks: vec![chunk], ..proto::StepPlan::default() };
        let one = proto::StepRequest { plan: Some(one), late_masks: vec![late] };
        let largest = proto::SequenceStart {
            sequence_id: u64::MAX,
            token_ids: vec![vocab_size - 1; MAX_SEQUENCE_TOKENS as usize],
            adapter_slot: u32::MAX,
            adapter_scale: 0.5,
            ..proto::SequenceStart::default()
        };
        let load = proto::AdapterLoad {
            slot: u32::MAX,
            path: "x".repeat(MAX_ADAPTER_PATH_BYTES),
            content_hash: vec![0xff; 32],
        };
        let starts = proto::StepPlan {
            starts: vec![largest],
            adapter_loads: vec![load; MAX_ADAPTER_SLOTS as usize],
            ..proto::StepPlan::default()
        };
        let starts = proto::StepRequest { plan: Some(starts), late_masks: Vec::new() };
        let num_bytes = num_sequences * size_of(&one) + size_of(&starts) + MAX_STARTS_BYTES as usize;
        assert!(num_bytes <= MAX_PLAN_MESSAGE_BYTES, "{num_bytes} bytes for {num_sequences} sequences");
    }
}
