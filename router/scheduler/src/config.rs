//! The scheduler's own limits; the shard's come with `Event::ShardReady`.

use trunkline_kv::{PolicyKind, TenantShare};

/// A tenant's weight in the queue. Of two tenants with waiting work, one of weight 2 is served twice as much.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantWeight {
    /// The tenant's name, as in [`trunkline_kv::Salt::tenant`].
    pub tenant: Box<str>,
    /// The weight, from 1 to [`crate::MAX_WEIGHT`].
    pub weight: u32,
}

/// Limits and weights of the scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// The number of lanes, each a place for one shard; at least 1.
    pub num_lanes: u32,
    /// The first lanes, which compute prompts for the others; 0 if all lanes do everything.
    pub num_prefill_lanes: u32,
    /// The most requests that wait for their first start. One more is rejected with `RejectReason::QueueFull`. If
    /// `weights` names several tenants, no tenant may have all places (`RejectReason::QueueShared`).
    pub max_queued_requests: u32,
    /// The most sequences that run at once. The shard's `max_step_sequences` is a second limit.
    pub max_running_sequences: u32,
    /// The most tokens of one step. The shard's `max_step_tokens` is a second limit.
    pub max_step_tokens: u32,
    /// The most tokens of prefill in a step that also decodes. It bounds the time that a long prompt adds between the
    /// tokens of other sequences.
    pub max_prefill_tokens_beside_decodes: u32,
    /// The time that a step should take at most if it decodes, in microseconds. Its prefill is as much as fits into
    /// this time, and at least [`crate::MIN_PREFILL_TOKENS`]. With 0 only the limit above holds.
    pub target_step_us: u32,
    /// The time from the arrival of a request to its first token that steps may exceed `target_step_us` for, up to four
    /// times, in milliseconds. A request's deadline counts in the same way. With 0 only the deadline does.
    pub target_ttft_ms: u32,
    /// The most tokens of prefill in any step while several tenants send requests. It bounds the time that a new
    /// request waits for the current step.
    pub max_shared_prefill_tokens: u32,
    /// The most prompts that are partly computed at once, if one step has no room for all of them.
    pub max_concurrent_prefills: u32,
    /// Milliseconds of arrival time by which a request with a fully cached prompt moves ahead of older ones in its
    /// class. A partly cached prompt moves by the same part of it. It bounds the extra wait of uncached requests.
    pub cached_first_window_ms: u64,
    /// The policy that chooses which cached blocks are evicted.
    pub eviction: PolicyKind,
    /// The most stored blocks that wait for [`crate::LowerTier::take_offers`]; 0 if there is no tier below the store.
    pub max_offered_blocks: usize,
    /// The weights of the tenants' guaranteed shares of the pool. Without any, all tenants weigh the same.
    pub shares: Vec<TenantShare>,
    /// The tenants' weights in the queue. Tenants that are not named have weight 1.
    pub weights: Vec<TenantWeight>,
    /// The credit of a tenant that comes back after a pause, in tokens of prompt. It may ask for this much at once and
    /// be served before the tenants that waited meanwhile.
    pub max_credit_tokens: u32,
    /// Milliseconds after which a waiting request is promoted to the class above.
    pub class_patience_ms: u64,
    /// The most of the pool that may be pinned, in percent.
    pub max_pinned_percent: u32,
    /// Milliseconds for which sequences wait for another shard after theirs was lost.
    pub shard_patience_ms: u64,
    /// The use of drafts.
    pub speculation: Speculation,
}

/// The use of drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// No sequence has drafts.
    Off,
    /// A step has the drafts that are predicted to pay.
    #[default]
    Auto,
    /// Every chunk that can has as many drafts as its sequence has a source for, up to this number.
    Always(u32),
}

impl SchedulerConfig {
    /// Returns the most blocks that may be pinned in a pool of this size.
    pub(crate) fn max_pinned_blocks(&self, num_blocks: u32) -> u32 {
        (u64::from(num_blocks) * u64::from(self.max_pinned_percent.min(100)) / 100) as u32
    }
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            num_lanes: 1,
            num_prefill_lanes: 0,
            max_queued_requests: 256,
            max_running_sequences: u32::MAX,
            max_step_tokens: u32::MAX,
            max_prefill_tokens_beside_decodes: 512,
            target_step_us: 0,
            target_ttft_ms: 0,
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
            shard_patience_ms: 120_000,
            speculation: Speculation::default(),
        }
    }
}
