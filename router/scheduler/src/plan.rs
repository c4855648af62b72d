//! Plans for the shard and its results are the messages of `shard.proto`. This module has what the scheduler adds.

use trunkline_contract::proto;
pub use trunkline_contract::proto::{
    AdapterLoad, AdapterOutcome, BlockCopy, BlockRestore, BlockStore, Chunk, LateMask,
    PromptTokenLogprob as TokenScore, Restore, RestoreOutcome, SampledToken, SequenceResult, SequenceStart,
    StepPlan, StepResult, StoreOutcome, TokenLogprob, Transfers, sequence_result::Outcome,
};

/// The positions of a chunk whose logits are computed: its first ones, which are scored, then its last one, after which
/// a token is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogitsRows {
    pub num_scored: u32,
    pub sample: bool,
}

impl LogitsRows {
    /// Returns the rows that a chunk asks for. `num_to_score` leading positions of its sequence are scored.
    pub fn of(chunk: &Chunk, num_to_score: u32) -> Self {
        let end = num_to_score.min(chunk.first_position + chunk.num_tokens);
        let num_scored = if chunk.score { end.saturating_sub(chunk.first_position) } else { 0 };
        Self { num_scored, sample: chunk.sample }
    }

    pub fn count(self) -> u32 {
        self.num_scored + u32::from(self.sample)
    }
}

/// The failure of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceError {
    /// The kind of failure.
    pub code: SequenceErrorCode,
    /// A message for the log, without prompt or token contents.
    pub message: String,
}

/// The kind of a sequence's failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SequenceErrorCode {
    /// The shard named no kind that this build knows.
    Unspecified,
    /// A logit is NaN, or all logits are infinite.
    NotFinite,
    /// The plan named a sequence, token, position or block that cannot exist.
    InvalidPlan,
    /// Weights that are streamed from disk cannot be read.
    UnreadWeights,
    /// The shard's result lacks the token that the plan asked for, or names one outside the vocabulary. Only the
    /// scheduler reports this.
    InvalidResult,
    /// The sequence's grammar cannot go on (`NextTokens::Failed`). Only the scheduler reports this.
    GrammarFailed,
    /// Two shards in a row were lost while they computed the sequence, the second one by itself. Only the scheduler
    /// reports this.
    CrashedShard,
    /// The adapter could not be loaded. The message is the shard's, for the client. Only the scheduler reports this.
    AdapterFailed,
}

impl From<proto::SequenceError> for SequenceError {
    fn from(error: proto::SequenceError) -> Self {
        let code = match error.code() {
            proto::SequenceErrorCode::Unspecified => SequenceErrorCode::Unspecified,
            proto::SequenceErrorCode::NotFinite => SequenceErrorCode::NotFinite,
            proto::SequenceErrorCode::InvalidPlan => SequenceErrorCode::InvalidPlan,
            proto::SequenceErrorCode::UnreadWeights => SequenceErrorCode::UnreadWeights,
        };
        Self { code, message: error.message }
    }
}
