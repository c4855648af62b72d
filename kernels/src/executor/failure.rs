//! What can be wrong with a call, and with one sequence of a step.

use crate::kv_pool::KvPoolError;

/// A call that makes no sense; the executor is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    /// `start` with an id that is taken.
    #[error("sequence {sequence_id} is started already")]
    AlreadyStarted { sequence_id: u64 },
    /// `end` of a sequence that is not there.
    #[error("sequence {sequence_id} is not started")]
    UnknownSequence { sequence_id: u64 },
    /// `start` with arguments that cannot be.
    #[error("sequence {sequence_id}: {what}")]
    BadStart { sequence_id: u64, what: String },
    /// A copy that the pool refuses.
    #[error(transparent)]
    KvPool(#[from] KvPoolError),
    /// A store or a transfer that cannot be.
    #[error("store of blocks: {what}")]
    Store { what: String },
    /// `score` that cannot be done.
    #[error("cannot score: {what}")]
    Score { what: String },
}

/// Why one sequence of a step failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceFailure {
    /// A logit is NaN or infinite, or `min_tokens` leaves none.
    NotFinite(String),
    /// The chunk names a sequence, token, position or block that cannot be.
    InvalidPlan(String),
}

impl SequenceFailure {
    /// Stable name of the kind: `not_finite` or `invalid_plan`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFinite(_) => "not_finite",
            Self::InvalidPlan(_) => "invalid_plan",
        }
    }

    /// For the log: what was wrong, without token contents.
    pub fn message(&self) -> &str {
        match self {
            Self::NotFinite(message) | Self::InvalidPlan(message) => message,
        }
    }
}
