//! The step scheduler of Trunkline: which sequence runs, with how many tokens, in which blocks.
//!
//! Pure: events and the time in, plans and updates out. It never waits, reads no clock, does no I/O, and decides by
//! state and event alone: the same calls give the same answers, so a trace replays bit for bit. The seam is described
//! in
//! `docs/architecture.md`; [`Scheduler`] shows one request's way through it.
//!
//! Order of choice: expired requests out; then by [`Priority`]; then by tenant, whoever got least by weight
//! (`fairness.rs`); then what is cached first, aged. A request that shares a prefix which another is computing waits
//! for it.

// The hidden modules are public for `tests/scheduler` only: the library is not compiled again for tests of its own.
mod admit;
mod below;
#[doc(hidden)]
pub mod budget;
pub mod config;
#[doc(hidden)]
pub mod estimate;
pub mod event;
#[doc(hidden)]
pub mod fairness;
mod give_way;
mod invariants;
mod kv_events;
mod late;
mod late_masks;
mod lifecycle;
mod pins;
pub mod plan;
mod planner;
#[doc(hidden)]
pub mod queue;
mod refuse;
mod results;
pub mod scheduler;
mod score;
#[doc(hidden)]
pub mod sequence;
pub mod stats;
mod transfer;
mod windows;

pub use below::Coverage;
pub use config::{SchedulerConfig, TenantWeight};
pub use event::{
    Allowed, EndReason, Event, Millis, NextTokens, Pinned, Priority, RejectReason, Retention, SequenceId,
    SequenceRequest, ShardLimits, StoreContents, Update, Usage,
};
pub use fairness::MAX_WEIGHT;
pub use plan::{
    BlockCopy, BlockStore, Chunk, LateMask, Restore, RestoreOutcome, SampledToken, SamplingParams,
    SequenceError, SequenceErrorCode, SequenceOutcome, SequenceResult, SequenceStart, StepPlan, StepResult,
    StoreOutcome, TokenLogprob, TokenMask, TokenScore, Transfers, Watermark,
};
pub use scheduler::{RUN_AHEAD, Scheduler};
pub use stats::Stats;
pub use trunkline_contract::{BlockId, BlockKey, KEY_BYTES, SlotId};
pub use trunkline_kv::{
    KvCache, KvEvent, NodeId, NodeView, Offer, Owner, PolicyKind, RestoredBlock, Salt, StoreUsage,
    StoredBlock, StoredEvent, TenantShare, TenantUsage, Tier, TreePage, WindowLimits, Worth,
};
