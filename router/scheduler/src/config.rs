//! The scheduler's own limits; the shard's come with `Event::ShardReady`.

use trunkline_kv::{PolicyKind, TenantShare};

/// A tenant's weight in the queue: of two that both have work waiting, one of weight 2 gets twice as much done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantWeight {
    /// [`trunkline_kv::Salt::tenant`].
    pub tenant: Box<str>,
    /// Its weight, from 1 to [`crate::MAX_WEIGHT`].
    pub weight: u32,
}

/// Limits and weights of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Most requests that wait for their first start; one more is rejected with `RejectReason::QueueFull`.
    /// Where `weights` names several tenants, none of them may have them all (`RejectReason::QueueShared`).
    pub max_queued_requests: u32,
    /// Most sequences that run at once; the shard's `max_step_sequences` bounds it further.
    pub max_running_sequences: u32,
    /// Most tokens of one step; the shard's `max_step_tokens` bounds it further.
    pub max_step_tokens: u32,
    /// Most tokens of prefill in a step that also decodes: what a long prompt may add to the others' inter-token time.
    pub max_prefill_tokens_beside_decodes: u32,
    /// The same in any step while several tenants send requests: what one that comes waits for.
    pub max_shared_prefill_tokens: u32,
    /// How many prompts may be half computed at once when one step has no room for all of them.
    pub max_concurrent_prefills: u32,
    /// How far a request whose whole prompt is cached may move ahead of older ones of its class, in milliseconds of
    /// arrival time; one that is cached in part moves that part of it. Bounds what an uncached request waits longer.
    pub cached_first_window_ms: u64,
    /// What goes when the prefix cache is full.
    pub eviction: PolicyKind,
    /// Most stored blocks that wait for [`crate::Scheduler::take_offers`]; 0: there is no tier below the store.
    pub max_offered_blocks: usize,
    /// Weights of the tenants' guaranteed shares of the pool; none: all who come weigh the same.
    pub shares: Vec<TenantShare>,
    /// Weights of the tenants in the queue; who is not named has 1.
    pub weights: Vec<TenantWeight>,
    /// How far a tenant may be ahead of those that waited while it had nothing to do, in tokens of prompt: what it may
    /// ask for at once and be served before them.
    pub max_credit_tokens: u32,
    /// Who waits for so long in a class gets into the one above, in milliseconds.
    pub class_patience_ms: u64,
    /// Most of the pool that may be pinned, in percent.
    pub max_pinned_percent: u32,
}

impl SchedulerConfig {
    /// Most blocks that may be pinned in a pool.
    pub(crate) fn max_pinned_blocks(&self, num_blocks: u32) -> u32 {
        // At most the pool.
        (u64::from(num_blocks) * u64::from(self.max_pinned_percent.min(100)) / 100) as u32
    }
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            max_queued_requests: 256,
            max_running_sequences: u32::MAX,
            max_step_tokens: u32::MAX,
            max_prefill_tokens_beside_decodes: 512,
            max_shared_prefill_tokens: 64,
            max_concurrent_prefills: 8,
            cached_first_window_ms: 2_000,
            eviction: PolicyKind::default(),
            max_offered_blocks: 0,
            shares: Vec::new(),
            weights: Vec::new(),
            max_credit_tokens: 2_048,
            class_patience_ms: 60_000,
            max_pinned_percent: 25,
        }
    }
}
