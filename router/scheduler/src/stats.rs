//! Gauges and counters, plain numbers.

use crate::event::RejectReason;

/// What the scheduler holds now and has done so far. Counters never go back, also across a lost shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Gauge: sequences that wait, preempted ones included.
    pub num_waiting: u64,
    /// Gauge: sequences that run.
    pub num_running: u64,
    /// Gauge: plans whose results are out.
    pub steps_in_flight: u64,
    /// Gauge: blocks with nothing in them. 0, like all gauges of blocks, while there is no shard.
    pub blocks_free: u64,
    /// Gauge: blocks that a sequence holds.
    pub blocks_held: u64,
    /// Gauge: blocks that only the KV index holds; any of them can be evicted.
    pub blocks_cached: u64,
    /// Gauge: held blocks that pins hold.
    pub blocks_pinned: u64,
    /// Gauge: held blocks that restores which were given up may still write.
    pub blocks_late: u64,
    /// Gauge: blocks of the pool. `free + held + cached = total`.
    pub blocks_total: u64,
    /// Gauge: window parts that no block has. 0, like the next two, while blocks are in one piece.
    pub window_parts_free: u64,
    /// Gauge: window parts that a sequence needs; the rest may be dropped.
    pub window_parts_needed: u64,
    /// Gauge: window parts of the pool.
    pub window_parts_total: u64,
    /// Gauge: blocks in the store. 0, like the next two, while there is no store.
    pub store_blocks: u64,
    /// Gauge: blocks that pins keep in the store, there or on their way.
    pub store_blocks_pinned: u64,
    /// Gauge: slots of the store.
    pub store_slots: u64,
    /// Gauge: stored blocks that wait for the tier below.
    pub offered_blocks: u64,
    /// Gauge: milliseconds that a sequence runs from its start to its end, of late. 0 before one ended by itself.
    pub run_ms: u64,
    /// Counter: prompt tokens of started sequences.
    pub prompt_tokens: u64,
    /// Counter: those that a prefix hit spared.
    pub prefix_hit_tokens: u64,
    /// Counter: tokens reported.
    pub output_tokens: u64,
    /// Counter: plans made.
    pub steps: u64,
    /// Counter: tokens planned to be computed.
    pub scheduled_tokens: u64,
    /// Counter: sequences stopped for want of blocks, or for a higher class.
    pub preemptions: u64,
    /// Counter: those of them that made room for a tenant with less than its part of the places or blocks.
    pub fair_preemptions: u64,
    /// Counter: times a sequence got into the class above, as it had waited for long.
    pub promotions: u64,
    /// Counter: blocks dropped from the KV index to make room.
    pub evicted_blocks: u64,
    /// Counter: window parts taken from blocks to make room.
    pub dropped_window_parts: u64,
    /// Counter: blocks written to the store.
    pub stored_blocks: u64,
    /// Counter: blocks that were to be written and were not.
    pub store_failures: u64,
    /// Counter: blocks read back from the store.
    pub restored_blocks: u64,
    /// Counter: restores that found a block missing or broken.
    pub restore_failures: u64,
    /// Counter: restores not begun because computing was predicted to be quicker, or another one was late.
    pub restores_declined: u64,
    /// Counter: restores that took so long that their sequences computed instead.
    pub restores_given_up: u64,
    /// Counter: blocks dropped from the store to make room.
    pub store_evicted_blocks: u64,
    /// Counter: times a stored block was not offered to the tier below, as too many waited.
    pub unoffered_blocks: u64,
    /// Counter: prompts pinned, or pinned again.
    pub pins_granted: u64,
    /// Counter: prompts not pinned as the limit or the tenant's share had no room.
    pub pins_refused: u64,
    /// Counter: pins that ended early, as a sequence could not have run else.
    pub pins_dropped: u64,
    /// Counter: times a request waited for another one that was computing its prefix.
    pub prefix_waits: u64,
    /// Counter: `RejectReason::QueueFull` and `QueueShared`.
    pub rejected_queue_full: u64,
    /// Counter: `RejectReason::TooLong`.
    pub rejected_too_long: u64,
    /// Counter: `RejectReason::DeadlineUnreachable`.
    pub rejected_deadline: u64,
    /// Counter: `RejectReason::Invalid`.
    pub rejected_invalid: u64,
    /// Counter: results that answer no plan in flight, and entries in them that answer no chunk or transfer. Should
    /// stay 0.
    pub unexpected_results: u64,
}

impl Stats {
    /// Counts a rejected sequence by its reason.
    pub(crate) fn count_rejection(&mut self, reason: &RejectReason) {
        let counter = match reason {
            RejectReason::QueueFull { .. } | RejectReason::QueueShared { .. } => {
                &mut self.rejected_queue_full
            }
            RejectReason::DeadlineUnreachable { .. } => &mut self.rejected_deadline,
            RejectReason::TooLong { .. } => &mut self.rejected_too_long,
            RejectReason::Invalid { .. } => &mut self.rejected_invalid,
        };
        *counter += 1;
    }
}
