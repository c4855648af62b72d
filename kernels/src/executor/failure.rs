//! Errors of executor calls, and failures of single sequences in a step.

use crate::adapter::AdapterError;
use crate::kv_pool::KvPoolError;

/// An invalid call, after which the executor is unchanged, or lost K and V.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecutorError {
    #[error("sequence {sequence_id} is started already")]
    AlreadyStarted { sequence_id: u64 },
    #[error("sequence {sequence_id} is not started")]
    UnknownSequence { sequence_id: u64 },
    #[error("sequence {sequence_id}: {what}")]
    BadStart { sequence_id: u64, what: String },
    #[error(transparent)]
    KvPool(#[from] KvPoolError),
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// K and V that exceed their memory cannot be read or written. No sequence may go on.
    #[error("K and V are lost: {what}")]
    LostKv { what: String },
    #[error("block store: {what}")]
    Store { what: String },
    #[error("cannot score: {what}")]
    Score { what: String },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SequenceFailure {
    /// A logit is NaN or infinite, or no token may be sampled.
    NotFinite(String),
    /// The chunk does not fit its sequence, the limits of a step or the pool.
    InvalidPlan(String),
    /// Weights cannot be read from the file that they are streamed from.
    Unread(String),
}

impl SequenceFailure {
    /// The stable error code: `not_finite`, `invalid_plan` or `unread_weights`.
    pub fn code(&self) -> &'static str {
        match self {
            Self::NotFinite(_) => "not_finite",
            Self::InvalidPlan(_) => "invalid_plan",
            Self::Unread(_) => "unread_weights",
        }
    }

    /// A message for the log. It contains no token ids or text.
    pub fn message(&self) -> &str {
        match self {
            Self::NotFinite(message) | Self::InvalidPlan(message) | Self::Unread(message) => message,
        }
    }
}
