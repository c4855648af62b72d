//! What the scheduler is told and what it answers. Plain data.

use std::sync::Arc;

use trunkline_kv::{Salt, StoredBlock, TenantShare, WindowLimits, Worth};

use crate::config::TenantWeight;
use crate::plan::{
    SampledToken, SamplingParams, SequenceError, StepResult, TokenMask, TokenScore, Transfers,
};

/// A point in time: milliseconds since any fixed moment, the same for all calls of one scheduler. Never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Milliseconds from `earlier` to `self`; 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// The point `ms` later.
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// Names a lane, the place of one shard in the scheduler. There is one lane today.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

/// Names one sequence between router and scheduler. Chosen by the router, used once, stable across preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// Class of a request; a lower class runs with what the higher ones leave, and is preempted first. Who waits for long
/// (`SchedulerConfig::class_patience_ms`) gets into the class above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Before all others.
    High,
    /// What a request has that says nothing.
    #[default]
    Normal,
    /// Batch work.
    Low,
}

impl Priority {
    /// From the highest to the lowest.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The class above it; none above the highest.
    pub(crate) fn above(self) -> Option<Self> {
        match self {
            Self::High => None,
            Self::Normal => Some(Self::High),
            Self::Low => Some(Self::Normal),
        }
    }
}

/// How long a sequence's prompt is to be kept in the KV index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Kept for so long after the sequence's end, in milliseconds, whatever else comes; none: as long as there is room.
    pub pinned_ms: Option<u64>,
    /// Leading tokens of the prompt that it is about; none: all of them.
    pub num_tokens: Option<u32>,
    /// What is not pinned is worth so much.
    pub worth: Worth,
    /// What its requests are called together, for people who look at the index.
    pub group: Option<Arc<str>>,
}

/// What of a prompt is kept on request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Tokens that stay on the device, from the first on; 0 if there was no room.
    pub num_tokens: u32,
    /// Tokens that stay in the store, there or on their way; none without a store.
    pub num_stored_tokens: Option<u32>,
}

/// What a shard can do, from `Describe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimits {
    /// Tokens per block; at least 1.
    pub block_size: u32,
    /// Blocks in the device pool.
    pub num_blocks: u32,
    /// Most tokens of one step; at least 1.
    pub max_step_tokens: u32,
    /// Most chunks of one step; at least 1.
    pub max_step_sequences: u32,
    /// Token ids are below it.
    pub vocab_size: u32,
    /// If blocks are in two parts: the parts for layers with a window.
    pub windows: Option<WindowLimits>,
}

/// What a store holds when its shard starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreContents {
    /// Slots are below it.
    pub num_slots: u32,
    /// Blocks there, in any order.
    pub blocks: Vec<StoredBlock>,
    /// They lie in the shard's memory, not on disk.
    pub is_in_memory: bool,
}

/// One sequence to generate. Validated by the router; the scheduler checks again only what would break it.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceRequest {
    /// Not used before.
    pub id: SequenceId,
    /// The prompt; at least one token.
    pub token_ids: Vec<u32>,
    /// Most tokens to generate. 0 ends with `EndReason::Length`: at once, or when the prompt's logprobs are reported.
    pub max_new_tokens: u32,
    /// How to choose tokens; its `end_token_ids` are filled from the field below.
    pub sampling: SamplingParams,
    /// Tokens that end the sequence; the one sampled is still reported as `Update::Token`.
    pub end_token_ids: Vec<u32>,
    /// Do not end at `end_token_ids`.
    pub ignore_eos: bool,
    /// Class.
    pub priority: Priority,
    /// End it when this moment has come, wherever it is.
    pub deadline: Option<Millis>,
    /// Namespace of the KV index.
    pub salt: Salt,
    /// How long its prompt is kept.
    pub retention: Retention,
    /// Under a grammar: no token is sampled before `Event::Allow` says which ones may be. The first is to be sent
    /// unasked, each other one after `Update::Awaits`.
    pub constrained: bool,
}

/// What may follow in a constrained sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Tokens that follow in any case: appended, and reported as `Update::Token`, without being sampled.
    pub forced: Vec<u32>,
    /// What follows them.
    pub next: NextTokens,
    /// It took long to work out: the next one is not to keep others waiting.
    pub is_slow: bool,
}

impl Allowed {
    /// The mask, where nothing else is to be done; else all of it.
    pub(crate) fn into_mask(self) -> Result<TokenMask, Self> {
        match self {
            Self { forced, next: NextTokens::Mask(mask), .. } if forced.is_empty() => Ok(mask),
            other => Err(other),
        }
    }

    /// Nothing forced, and one of these.
    pub(crate) fn from_mask(mask: TokenMask) -> Self {
        Self { forced: Vec::new(), next: NextTokens::Mask(mask), is_slow: false }
    }
}

/// What follows the forced tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextTokens {
    /// One of these.
    Mask(TokenMask),
    /// Nothing: it ends with `EndReason::EndToken`.
    End,
    /// The grammar cannot go on: it ends with `EndReason::Failed`. For the log.
    Failed(String),
}

/// What the scheduler is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A shard is there, with an empty KV pool and no sequences. Also after `ShardLost`, then maybe with other limits.
    ShardReady(LaneId, ShardLimits),
    /// The shard has a store, with this in it. Right after `ShardReady`.
    StoreReady(LaneId, StoreContents),
    /// A new sequence. Answered by exactly one `Update::Ended` or `Update::Rejected` in the end.
    Submit(Box<SequenceRequest>),
    /// What may follow in a constrained sequence. Once for each time that it waits for it; unknown ids (ended already)
    /// are ignored.
    Allow {
        /// Which.
        id: SequenceId,
        /// What.
        allowed: Allowed,
    },
    /// The router found a stop string: end it with `EndReason::Finished`. Unknown ids (ended already) are ignored.
    Finish(SequenceId),
    /// The client is gone: end it with `EndReason::Aborted`. Unknown ids (ended already) are ignored.
    Abort(SequenceId),
    /// The shard answered a plan. In the order of the plans, each once, and none from before the last `ShardReady`.
    StepResult(LaneId, StepResult),
    /// Transfers that plans began are over; those of a step come after its result.
    Transfers(LaneId, Transfers),
    /// The tenants' weights in the KV cache are others now, in place of `SchedulerConfig::shares`.
    Shares(Vec<TenantShare>),
    /// The tenants' weights in the queue are others now, in place of `SchedulerConfig::weights`.
    Weights(Vec<TenantWeight>),
    /// The shard is gone with all that it held.
    ShardLost(LaneId),
}

/// What the scheduler answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The sequence's first chunk is in the plan. At most once, not repeated after a preemption.
    Started {
        /// Which.
        id: SequenceId,
        /// Prompt tokens that a prefix hit spared.
        cached_tokens: u32,
        /// Milliseconds from `Submit` to here.
        queued_ms: u64,
    },
    /// The sequence asked for a pin, and this came of it. Once, before its first token.
    Pinned {
        /// Which.
        id: SequenceId,
        /// What stays.
        pinned: Pinned,
    },
    /// More of the prompt's logprobs: what was reported so far covers its beginning. All of them come before the first
    /// token that is sampled.
    Scored {
        /// Which.
        id: SequenceId,
        /// Of the prompt's next tokens.
        scores: Vec<TokenScore>,
    },
    /// One output token.
    Token {
        /// Which.
        id: SequenceId,
        /// Token with logprobs as asked.
        token: SampledToken,
    },
    /// A constrained sequence goes on when `Event::Allow` comes for what follows this token, which was sampled.
    Awaits {
        /// Which.
        id: SequenceId,
        /// The token, reported by `Token` before.
        token_id: u32,
    },
    /// Final: the sequence ended.
    Ended {
        /// Which.
        id: SequenceId,
        /// Why.
        reason: EndReason,
        /// What it took.
        usage: Usage,
    },
    /// Final: the sequence was not taken.
    Rejected {
        /// Which.
        id: SequenceId,
        /// Why, with the numbers for the message.
        reason: RejectReason,
        /// When a retry is likely to be taken, in milliseconds from now; none: never.
        retry_after_ms: Option<u64>,
    },
}

/// Why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It sampled one of its `end_token_ids`, or its grammar allows nothing more.
    EndToken,
    /// It reached `max_new_tokens`.
    Length,
    /// `Event::Finish`.
    Finished,
    /// `Event::Abort`.
    Aborted,
    /// Its deadline came, in the queue or while it ran.
    DeadlineExceeded,
    /// The shard could not go on with it.
    Failed(SequenceError),
    /// The shard was lost after the sequence had started.
    ShardLost,
}

/// Why a sequence was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// As many wait as may.
    QueueFull {
        /// Waiting now.
        num_waiting: u32,
        /// `SchedulerConfig::max_queued_requests`.
        max_queued_requests: u32,
        /// How long the oldest has waited.
        oldest_wait_ms: u64,
    },
    /// So many of the tenant's own wait that one more would leave others too little of the queue.
    QueueShared {
        /// Of the tenant.
        num_waiting: u32,
        /// Of everybody.
        num_free: u32,
        /// `SchedulerConfig::max_queued_requests`.
        max_queued_requests: u32,
    },
    /// Prompt and output can never fit the pool.
    TooLong {
        /// Prompt length.
        prompt_tokens: u32,
        /// Output asked for.
        max_new_tokens: u32,
        /// Most tokens, prompt and output together, that the pool can hold for one sequence.
        max_total_tokens: u64,
    },
    /// The queue is too long for the deadline.
    DeadlineUnreachable {
        /// Predicted wait until its first chunk.
        predicted_wait_ms: u64,
        /// Time left until the deadline.
        deadline_in_ms: u64,
    },
    /// The request has no tokens, or one that is not in the vocabulary: the router should have refused it.
    Invalid {
        /// What is wrong, for the log.
        message: String,
    },
}

/// What a sequence took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Prompt length.
    pub prompt_tokens: u32,
    /// Tokens reported by `Update::Token`.
    pub output_tokens: u32,
    /// Prompt tokens that a prefix hit spared at the first start.
    pub cached_tokens: u32,
}
