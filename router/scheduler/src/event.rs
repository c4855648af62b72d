//! The scheduler's events and its answers, as plain data.

use std::sync::Arc;

use trunkline_contract::{SamplingParams, TokenMask};
use trunkline_draft::Drafter;
use trunkline_kv::{AdapterHash, CachePriority, Salt, SaltAdapter, StoredBlock, TenantShare, WindowLimits};

use crate::config::TenantWeight;
use crate::plan::{SampledToken, SequenceError, StepResult, TokenScore, Transfers};

/// A point in time, in milliseconds since a fixed moment that is the same for all calls of one scheduler. It never goes
/// back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u64);

impl Millis {
    /// Returns the milliseconds from `earlier` to `self`; 0 if `earlier` is later.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the point `ms` milliseconds later.
    pub fn plus(self, ms: u64) -> Self {
        Self(self.0.saturating_add(ms))
    }
}

/// Names a lane, the place of one shard in the scheduler. The lanes are numbered from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u32);

impl LaneId {
    /// The lane that every scheduler has.
    pub const FIRST: Self = Self(0);
}

/// Names one sequence between router and scheduler. The router chooses it and uses it once; it survives preemption.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceId(pub u64);

/// The class of a request. A lower class gets only the budget that higher ones leave, and is preempted first. A request
/// that waits longer than `SchedulerConfig::class_patience_ms` is promoted to the class above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Goes before all other requests.
    High,
    /// The class of requests that name none.
    #[default]
    Normal,
    /// For batch work, which can wait.
    Low,
}

impl Priority {
    /// All classes, from the highest to the lowest.
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// Returns the class above, if there is one.
    pub(crate) fn above(self) -> Option<Self> {
        match self {
            Self::High => None,
            Self::Normal => Some(Self::High),
            Self::Low => Some(Self::Normal),
        }
    }
}

/// A request's wishes about keeping its prompt in the KV index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Pins the prompt for this many milliseconds after the sequence's end. Without it the prompt is kept as long as
    /// there is room.
    pub pinned_ms: Option<u64>,
    /// Limits the pin to this many leading tokens of the prompt; none pins all of them.
    pub num_tokens: Option<u32>,
    /// Decides how early blocks that are not pinned are evicted.
    pub cache_priority: CachePriority,
    /// Names a group of requests, for people who look at the index.
    pub group: Option<Arc<str>>,
}

/// The outcome of a pin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// Leading tokens that stay on the device; 0 if there was no room.
    pub num_tokens: u32,
    /// Leading tokens that stay in the store, written or being written; none without a store.
    pub num_stored_tokens: Option<u32>,
}

/// A shard's limits, from `Describe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardLimits {
    /// Tokens per block; at least 1.
    pub block_size: u32,
    /// Blocks in the device pool.
    pub num_blocks: u32,
    /// The most tokens of one step; at least 1.
    pub max_step_tokens: u32,
    /// The most chunks of one step, and the most positions whose logits one step computes; at least 1.
    pub max_step_sequences: u32,
    /// Token ids are less than this.
    pub vocab_size: u32,
    /// The number of elements of a vector; 0 if the shard makes none.
    pub vector_size: u32,
    /// The pool of window parts, for models whose blocks are in two parts.
    pub windows: Option<WindowLimits>,
    /// Identifies the numbers that the shard computes. An output that one shard began goes on only on a shard with the
    /// same value.
    pub numerics: u64,
    /// The most drafts of a chunk; 0 if chunks may have none.
    pub max_draft_tokens: u32,
    /// The most drafts of the shard's draft model in a chunk; 0 without one.
    pub max_own_drafts: u32,
    /// The adapters that the shard can have loaded at once; 0 if it takes none.
    pub num_adapter_slots: u32,
    /// The bytes that loaded adapters may take together.
    pub adapter_bytes: u64,
}

impl ShardLimits {
    /// Returns true if window parts hold the states of recurrent layers.
    pub fn is_recurrent(&self) -> bool {
        self.windows.is_some_and(|windows| windows.is_recurrent)
    }
}

/// The contents of a store when its shard starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreContents {
    /// The number of slots.
    pub num_slots: u32,
    /// The stored blocks, in any order.
    pub blocks: Vec<StoredBlock>,
    /// True if the store is in the shard's memory rather than on disk.
    pub is_in_memory: bool,
    /// The folder of the store, if the shards of other lanes can read it there.
    pub folder: Option<Arc<str>>,
    /// True if the shard reads the stores of other lanes.
    pub reads_others: bool,
}

/// One sequence to generate. The router has validated it; the scheduler checks again only what would break its own
/// state. It travels unchanged from the router's checks into the scheduler's sequence; only `id`, `deadline` and
/// `constrained` are set on the way, where they are known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SequenceRequest {
    /// An id that was not used before.
    pub id: SequenceId,
    /// The prompt; at least one token.
    pub token_ids: Vec<u32>,
    /// The most tokens to generate. With 0 the sequence ends with `EndReason::Length`, at once or when the prompt's
    /// logprobs are reported.
    pub max_new_tokens: u32,
    /// The sampling parameters. A token of `end_token_ids` that ends the sequence is still reported as `Update::Token`.
    pub sampling: SamplingParams,
    /// Ignores `end_token_ids`, so that the sequence does not end there.
    pub ignore_eos: bool,
    /// The class in which it waits and runs.
    pub priority: Priority,
    /// The moment at which it ends, whether it waits or runs.
    pub deadline: Option<Millis>,
    /// The namespace of its prefix in the KV index.
    pub salt: Salt,
    /// The client's wishes about keeping the prompt.
    pub retention: Retention,
    /// True if a grammar constrains the output. No token is sampled then before `Event::Allow` says which ones are
    /// allowed. Send the first such event without being asked, and each later one after `Update::Awaits`.
    pub constrained: bool,
    /// Drafts its next tokens, if it may speculate. It knows the prompt.
    pub drafter: Option<Drafter>,
    /// Asks for a vector of the prompt (`Update::Pooled`) instead of tokens. `max_new_tokens` is 1 then.
    pub pooling: Option<PooledPrompt>,
    /// The adapter of the request, if it names one.
    pub adapter: Option<Arc<AdapterUse>>,
}

/// An adapter that changes a sequence's results. [`SequenceRequest::salt`] has its [`AdapterUse::in_salt`].
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterUse {
    /// Its name, for metrics.
    pub name: Arc<str>,
    /// The path of its files, from `OpenAdapter`; at most 4,096 bytes.
    pub path: Arc<str>,
    /// The hash of its files, from `OpenAdapter`.
    pub content_hash: AdapterHash,
    /// The bytes that it takes while it is loaded, from `OpenAdapter`.
    pub num_bytes: u64,
    /// The factor of what it adds to the model's weights; 1 is as it was trained.
    pub scale: f32,
}

impl AdapterUse {
    /// What the salt has of it: K and V depend on the scale, too.
    pub fn in_salt(&self) -> SaltAdapter {
        SaltAdapter { hash: self.content_hash.scaled(self.scale), name: self.name.clone() }
    }
}

/// A prompt whose vector is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PooledPrompt {
    pub pooling: Pooling,
    /// The position at which the second of two texts begins; 0 if there is only one.
    pub second_text: u32,
}

/// The positions that the vector of a prompt depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The last one, so a prefix hit spares the others.
    Last,
    /// All of them, so each is computed.
    All,
    /// All of them, and each depends on those behind it. The prompt is computed in one chunk, and its blocks are of no
    /// use to other sequences.
    Whole,
}

/// A grammar's answer: the continuations that it allows in a constrained sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// Tokens that must follow. They are appended and reported as `Update::Token` without being sampled.
    pub forced: Vec<u32>,
    /// The continuation after the forced tokens.
    pub next: NextTokens,
    /// True if the answer took long to compute. No plan waits for the sequence's next answer then.
    pub is_slow: bool,
    /// The first drafts of `Update::Awaits` behind the forced tokens that the grammar permits. `next` is a mask then.
    pub drafts: Vec<MaskedDraft>,
}

/// A draft that a grammar permits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskedDraft {
    pub token_id: u32,
    /// The tokens that may be sampled after it.
    pub mask: TokenMask,
}

/// The continuation after the forced tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextTokens {
    /// One of the tokens in the mask is sampled.
    Mask(TokenMask),
    /// Nothing follows, and the sequence ends with `EndReason::EndToken`.
    End,
    /// The grammar cannot go on, and the sequence ends with `EndReason::Failed` and this message.
    Failed(String),
}

/// An event that the scheduler handles.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The lane's shard is connected, with an empty KV pool and no sequences. After `ShardLost` its limits may be
    /// others.
    ShardReady(LaneId, ShardLimits),
    /// The lane's shard has a store with these contents. Sent right after `ShardReady`.
    StoreReady(LaneId, StoreContents),
    /// A new sequence. Exactly one `Update::Ended` or `Update::Rejected` answers it in the end.
    Submit(Box<SequenceRequest>),
    /// A grammar's answer, sent once for each time that a constrained sequence waits for it. It is ignored if the
    /// sequence has ended.
    Allow {
        /// The sequence that waits for the answer.
        id: SequenceId,
        /// The continuations that the grammar allows.
        allowed: Allowed,
    },
    /// The router found a stop string, and the sequence ends with `EndReason::Finished`. Ignored if it has ended
    /// already.
    Finish(SequenceId),
    /// The client disconnected, and the sequence ends with `EndReason::Aborted`. Ignored if it has ended already.
    Abort(SequenceId),
    /// The lane's shard answered a plan. Results are sent once, in the order of the plans, and none from before the
    /// last `ShardReady`.
    StepResult(LaneId, StepResult),
    /// Transfers of the lane's shard are over. Those that a step began are reported after its result.
    Transfers(LaneId, Transfers),
    /// Replaces `SchedulerConfig::shares`, the tenants' weights in the KV cache.
    Shares(Vec<TenantShare>),
    /// Replaces `SchedulerConfig::weights`, the tenants' weights in the queue.
    Weights(Vec<TenantWeight>),
    /// The lane drains: while another one serves, it takes no sequence. What still runs there after `patience_ms` goes
    /// on with another lane. `None` ends the drain. It outlives the shard.
    Drain { lane: LaneId, patience_ms: Option<u64> },
    /// The lane's shard is lost with everything that it held.
    ShardLost {
        lane: LaneId,
        /// True if another shard will probably come. Sequences then wait for it and go on where they were. Otherwise
        /// all of them end. Send the event again if this becomes known later.
        may_return: bool,
    },
}

/// Tokens that were read from the store instead of being computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    pub num_tokens: u32,
    /// The time that the shard took to read them.
    pub time_us: u64,
}

/// An answer of the scheduler.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// The sequence's first chunk is in the plan. This is reported at most once, and not again after a preemption.
    Started {
        /// The sequence that this concerns.
        id: SequenceId,
        /// Prompt tokens that a prefix hit spared.
        cached_tokens: u32,
        /// Milliseconds since the sequence's `Submit`.
        queued_ms: u64,
        /// The part of the cached tokens that was read from the store.
        restored: Restored,
    },
    /// The outcome of the pin that the sequence asked for. Reported once, before its first sampled token.
    Pinned {
        /// The sequence that this concerns.
        id: SequenceId,
        /// The tokens that stay.
        pinned: Pinned,
    },
    /// More of the prompt's logprobs, in the order of its tokens. All of them are reported before the first sampled
    /// token.
    Scored {
        /// The sequence that this concerns.
        id: SequenceId,
        /// The logprobs of the prompt's next tokens.
        scores: Vec<TokenScore>,
    },
    /// The vector of a prompt that asked for it. `Ended` with `EndReason::Length` follows.
    Pooled {
        /// The sequence that this concerns.
        id: SequenceId,
        /// The vector, as the shard reports it.
        vector: Vec<f32>,
    },
    /// A step computed drafts of the sequence. Its tokens follow.
    Drafted {
        /// The sequence that this concerns.
        id: SequenceId,
        /// The drafts that were computed.
        num_drafts: u32,
        /// The first of them, which were right.
        num_accepted: u32,
    },
    /// One more output token.
    Token {
        /// The sequence that this concerns.
        id: SequenceId,
        /// The token, with logprobs if they were requested.
        token: SampledToken,
    },
    /// A constrained sequence waits for `Event::Allow` with the continuations after these sampled tokens.
    Awaits {
        /// The sequence that this concerns.
        id: SequenceId,
        /// The tokens, which `Token` has reported. With drafts it may be several.
        token_ids: Vec<u32>,
        /// Tokens that are likely to follow. The answer should say which of them the grammar permits.
        drafts: Vec<u32>,
    },
    /// The sequence ended. This update is final.
    Ended {
        /// The sequence that this concerns.
        id: SequenceId,
        /// The reason why it ended.
        reason: EndReason,
        /// The tokens that it used.
        usage: Usage,
    },
    /// The sequence was not taken. This update is final.
    Rejected {
        /// The sequence that this concerns.
        id: SequenceId,
        /// The reason, with the numbers for the message.
        reason: RejectReason,
        /// Milliseconds after which a retry will probably be taken; none if it never will.
        retry_after_ms: Option<u64>,
    },
}

/// The reason why a sequence ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It sampled one of its `end_token_ids`, or its grammar allows no further token.
    EndToken,
    /// The output has `max_new_tokens` tokens.
    Length,
    /// The router sent `Event::Finish`.
    Finished,
    /// The router sent `Event::Abort`.
    Aborted,
    /// The deadline passed, in the queue or while the sequence ran.
    DeadlineExceeded,
    /// The shard or the grammar could not go on with it.
    Failed(SequenceError),
    /// The shard was lost after the sequence had started, and no shard came in time that could go on with it.
    ShardLost,
}

/// The reason why a sequence was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The queue is full.
    QueueFull {
        /// Requests that wait now.
        num_waiting: u32,
        /// The limit from `SchedulerConfig::max_queued_requests`.
        max_queued_requests: u32,
        /// Milliseconds that the oldest of them has waited.
        oldest_wait_ms: u64,
    },
    /// The tenant has so many waiting requests that one more would leave other tenants too little of the queue.
    QueueShared {
        /// The tenant's waiting requests.
        num_waiting: u32,
        /// Free places in the queue.
        num_free: u32,
        /// The limit from `SchedulerConfig::max_queued_requests`.
        max_queued_requests: u32,
    },
    /// Prompt and output together can never fit the pool.
    TooLong {
        /// The length of the prompt.
        prompt_tokens: u32,
        /// The requested length of the output.
        max_new_tokens: u32,
        /// The most tokens, prompt and output together, that the pool can hold for one sequence.
        max_total_tokens: u64,
    },
    /// The predicted wait in the queue is longer than the deadline allows.
    DeadlineUnreachable {
        /// Predicted milliseconds until its first chunk.
        predicted_wait_ms: u64,
        /// Milliseconds until the deadline.
        deadline_in_ms: u64,
    },
    /// The request names an adapter, and the shards take none.
    NoAdapters,
    /// The shard was lost, and no other one came within `SchedulerConfig::shard_patience_ms`.
    ShardAway,
    /// An equal request of the tenant crashed shards and was convicted a short time ago.
    Poison {
        /// Milliseconds for which such requests are still refused.
        for_ms: u64,
    },
    /// The request has no tokens, or one outside the vocabulary. The router should have refused it.
    Invalid {
        /// The problem, for the log.
        message: String,
    },
}

/// The tokens that a sequence used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The length of the prompt.
    pub prompt_tokens: u32,
    /// Tokens that `Update::Token` has reported.
    pub output_tokens: u32,
    /// Prompt tokens that a prefix hit spared at the first start.
    pub cached_tokens: u32,
}
