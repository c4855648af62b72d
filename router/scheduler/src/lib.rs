//! The step scheduler of Trunkline. It decides which sequences run, with how many tokens, and in which blocks.
//!
//! The crate is pure: events and the time go in, plans and updates come out. It never waits, reads no clock and does no
//! I/O, and the same calls always give the same answers, so a trace replays bit for bit. `docs/architecture.md`
//! describes its place in the router; [`Scheduler`] follows one request through it. The router uses what this file
//! re-exports; modules that are public besides are parts whose contracts hold by themselves.
//!
//! Expired requests are removed first. The others are chosen by [`Priority`], then by tenant, starting with the one
//! that has been served least by its weight (`fairness.rs`), then by the tenant's adapter, likewise, then by age, where
//! a cached prefix counts as some age. A request that shares a prefix which another one is computing waits for it.
//!
//! Modules use only modules above them in this list, which `scripts/rust_imports.py` checks:
//!
//! ```text
//! config, consumption, plan, recents       plain data
//! event, fairness, outbox, step_cost       what comes in, tenants' shares, what goes out, and what a step costs
//! constraint, estimate, message_size, shared_store, stats   parts that know nothing of sequences
//! sequence                                 a sequence
//! budget                                   the rows and tokens of a step
//! sequence_map, queue, adapters, in_flight, poison, restores   many of them, and what they wait for
//! sequences, shard, loss_log               all with their tenants, and one connected shard
//! running, cells                           those that run on a shard, and suspects by themselves
//! lane                                     a shard with its sequences
//! neighbours, windows, pins, lower_tier, scores, starts, late_masks   parts of a plan and of its results
//! lifecycle                                the moves of a sequence between queue, run and end
//! drafts, drain, output, refusal, roles, transfers, yielding   rules that several of the next ones share
//! choice, loss, prefill                    the lane of a sequence, lost shards, and the room for prompts
//! admission, balance, results, turns       who runs, and what a result changes
//! planner, invariants                      a step's plan
//! scheduler                                the whole
//! ```

pub mod adapters;
mod admission;
mod balance;
pub mod budget;
mod cells;
mod choice;
pub mod config;
pub mod constraint;
pub mod consumption;
pub mod drafts;
mod drain;
pub mod estimate;
pub mod event;
pub mod fairness;
mod in_flight;
mod invariants;
mod lane;
mod late_masks;
mod lifecycle;
mod loss;
mod loss_log;
mod lower_tier;
pub mod message_size;
mod neighbours;
mod outbox;
mod output;
mod pins;
pub mod plan;
mod planner;
pub mod poison;
mod prefill;
pub mod queue;
mod recents;
mod refusal;
mod restores;
mod results;
mod roles;
mod running;
pub mod scheduler;
mod scores;
pub mod sequence;
pub mod sequence_map;
mod sequences;
mod shard;
mod shared_store;
pub mod starts;
mod stats;
pub mod step_cost;
mod transfers;
mod turns;
mod windows;
mod yielding;

pub use adapters::{AdapterSlot, AdapterUses, SLOT_PATIENCE_MS};
pub use config::{SchedulerConfig, Speculation, TenantWeight};
pub use consumption::Consumption;
pub use event::{
    AdapterUse, Allowed, EndReason, Event, LaneId, MaskedDraft, Millis, NextTokens, Pinned, PooledPrompt,
    Pooling, Priority, RejectReason, Restored, Retention, SequenceId, SequenceRequest, ShardLimits,
    StoreContents, Update, Usage,
};
pub use fairness::MAX_WEIGHT;
pub use in_flight::{RUN_AHEAD, SequenceInStep};
pub use lower_tier::{Coverage, LowerTier};
pub use pins::Nodes;
pub use plan::{
    AdapterLoad, AdapterOutcome, BlockCopy, BlockRestore, BlockStore, Chunk, LateMask, LogitsRows, Outcome,
    Restore, RestoreOutcome, SampledToken, SequenceError, SequenceErrorCode, SequenceResult, SequenceStart,
    StepPlan, StepResult, StoreOutcome, TokenLogprob, TokenScore, Transfers,
};
pub use prefill::MIN_PREFILL_TOKENS;
pub use scheduler::Scheduler;
pub use stats::{LaneStats, Stats};
pub use step_cost::StepWork;
pub use trunkline_contract::{BlockId, BlockKey, KEY_BYTES, SamplingParams, SlotId, TokenMask, Watermark};
pub use trunkline_kv::{
    AdapterHash, CachePriority, KvCache, KvEvent, NodeId, NodeView, Offer, Owner, PolicyKind, RestoredBlock,
    Salt, SaltAdapter, StoreIndex, StoreUsage, StoredBlock, StoredEvent, TenantShare, TenantUsage, Tier,
    TreePage, WindowLimits,
};
