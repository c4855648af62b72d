//! Gauges and counters, plain numbers.

use crate::event::RejectReason;

/// The scheduler's gauges and counters. Counters never go back, not even when a shard is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Gauge: sequences that wait, including preempted ones.
    pub num_waiting: u64,
    /// Gauge: sequences that run.
    pub num_running: u64,
    /// Gauge: plans whose results have not arrived.
    pub steps_in_flight: u64,
    /// Gauge: empty blocks. All gauges of blocks are 0 while there is no shard.
    pub blocks_free: u64,
    /// Gauge: blocks that a sequence, a pin or an abandoned restore holds.
    pub blocks_held: u64,
    /// Gauge: blocks that only the KV index has. Any of them can be evicted.
    pub blocks_cached: u64,
    /// Gauge: held blocks that pins hold.
    pub blocks_pinned: u64,
    /// Gauge: held blocks that abandoned restores may still write.
    pub blocks_late: u64,
    /// Gauge: blocks of the pool. `free + held + cached = total`.
    pub blocks_total: u64,
    /// Gauge: window parts that no block has. The gauges of window parts are 0 while blocks are in one piece.
    pub window_parts_free: u64,
    /// Gauge: window parts that a sequence needs. Others may be dropped.
    pub window_parts_needed: u64,
    /// Gauge: window parts of the pool.
    pub window_parts_total: u64,
    /// Gauge: blocks in the store. The gauges of the store are 0 while there is none.
    pub store_blocks: u64,
    /// Gauge: blocks that pins keep in the store, written or being written.
    pub store_blocks_pinned: u64,
    /// Gauge: slots of the store.
    pub store_slots: u64,
    /// Gauge: stored blocks that wait for the tier below.
    pub offered_blocks: u64,
    /// Gauge: slots for adapters.
    pub adapter_slots: u64,
    /// Gauge: slots whose adapters are loaded.
    pub adapter_slots_loaded: u64,
    /// Gauge: recent mean milliseconds from a sequence's start to its end. 0 before one has ended by itself.
    pub run_ms: u64,
    /// Gauge: the mean relative error of predicted step times, in millionths.
    pub step_error_ppm: u64,
    /// Counter: prompt tokens of started sequences.
    pub prompt_tokens: u64,
    /// Counter: prompt tokens of started sequences that a prefix hit spared.
    pub prefix_hit_tokens: u64,
    /// Counter: output tokens that were reported.
    pub output_tokens: u64,
    /// Counter: drafts that were computed.
    pub drafted_tokens: u64,
    /// Counter: drafts among them that were right.
    pub accepted_draft_tokens: u64,
    /// Counter: microseconds of the device for drafting, which the draft model takes.
    pub draft_time_us: u64,
    /// Counter: plans that were made.
    pub steps: u64,
    /// Counter: tokens that plans asked to compute.
    pub scheduled_tokens: u64,
    /// Counter: sequences preempted because blocks ran out, for a higher class or for another tenant.
    pub preemptions: u64,
    /// Counter: preemptions for a tenant with less than its part of the places or blocks.
    pub fair_preemptions: u64,
    /// Counter: promotions of long-waiting sequences to the class above.
    pub promotions: u64,
    /// Counter: sequences that had started when their shard was lost and were queued again.
    pub replays: u64,
    /// Counter: sequences that left a lane because its step was late, and went on with another one.
    pub escapes: u64,
    /// Counter: sequences that failed because they crashed the shard.
    pub convictions: u64,
    /// Counter: losses of a shard for which sequences are to blame, so that the launcher should not count them.
    pub excused_losses: u64,
    /// Counter: blocks dropped from the KV index to make room.
    pub evicted_blocks: u64,
    /// Counter: window parts taken from blocks to make room.
    pub dropped_window_parts: u64,
    /// Counter: blocks written to the store.
    pub stored_blocks: u64,
    /// Counter: blocks that could not be written to the store.
    pub store_failures: u64,
    /// Counter: blocks read back from the store.
    pub restored_blocks: u64,
    /// Counter: blocks that were read from the store of another lane. `restored_blocks` contains them.
    pub moved_blocks: u64,
    /// Counter: running sequences that a lane with less to do took over.
    pub moves: u64,
    /// Counter: sequences whose prompts one lane computed for another.
    pub hand_overs: u64,
    /// Counter: restores that found a block missing or damaged.
    pub restore_failures: u64,
    /// Counter: restores not begun because computing was predicted to be quicker, or an abandoned one was still in
    /// flight.
    pub restores_declined: u64,
    /// Counter: restores abandoned because they took too long.
    pub restores_given_up: u64,
    /// Counter: blocks dropped from the store to make room.
    pub store_evicted_blocks: u64,
    /// Counter: stored blocks that were not offered to the tier below because too many offers waited.
    pub unoffered_blocks: u64,
    /// Counter: pins that were granted or renewed.
    pub pins_granted: u64,
    /// Counter: pins refused because the limit or the tenant's share had no room.
    pub pins_refused: u64,
    /// Counter: pins dropped early because a sequence could not run otherwise.
    pub pins_dropped: u64,
    /// Counter: times a request was parked on another one that was computing its prefix.
    pub prefix_waits: u64,
    /// Counter: loads of adapters that were planned.
    pub adapter_loads: u64,
    /// Counter: loads of adapters that failed.
    pub adapter_load_failures: u64,
    /// Counter: loaded adapters that gave others their room.
    pub adapter_evictions: u64,
    /// Counter: sequences that had to wait because their adapter had no room.
    pub adapter_waits: u64,
    /// Counter: rejections with `RejectReason::QueueFull` or `QueueShared`.
    pub rejected_queue_full: u64,
    /// Counter: rejections with `RejectReason::TooLong`.
    pub rejected_too_long: u64,
    /// Counter: rejections with `RejectReason::NoAdapters`.
    pub rejected_no_adapters: u64,
    /// Counter: rejections with `RejectReason::DeadlineUnreachable`.
    pub rejected_deadline: u64,
    /// Counter: rejections with `RejectReason::ShardAway`.
    pub rejected_shard_away: u64,
    /// Counter: rejections with `RejectReason::Poison`.
    pub rejected_poison: u64,
    /// Counter: rejections with `RejectReason::Invalid`.
    pub rejected_invalid: u64,
    /// Counter: results that answer no plan in flight, and entries that answer no chunk or transfer. It should stay 0.
    pub unexpected_results: u64,
}

/// The gauges and counters of one lane. Counters never go back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneStats {
    /// True while a shard is connected.
    pub is_connected: bool,
    /// True while the lane drains.
    pub is_draining: bool,
    /// True while the lane drains and nothing is left on its shard, which may be stopped.
    pub is_drained: bool,
    /// Gauge: sequences that run.
    pub num_running: u64,
    /// Gauge: blocks that a sequence, a pin or an abandoned restore holds.
    pub blocks_held: u64,
    /// Gauge: blocks that only the KV index has.
    pub blocks_cached: u64,
    /// Gauge: blocks of the pool.
    pub blocks_total: u64,
    /// Counter: plans that were made.
    pub steps: u64,
    /// Counter: tokens that plans asked to compute.
    pub scheduled_tokens: u64,
    /// Counter: prompt tokens that a prefix hit spared, of sequences that first started here.
    pub prefix_hit_tokens: u64,
    /// Counter: sequences that left the lane because a step was late.
    pub escapes: u64,
    /// Counter: losses of the shard, except of one that was drained.
    pub losses: u64,
    /// Counter: losses for which sequences are to blame, so that the launcher should not count them.
    pub excused_losses: u64,
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
            RejectReason::NoAdapters => &mut self.rejected_no_adapters,
            RejectReason::ShardAway => &mut self.rejected_shard_away,
            RejectReason::Poison { .. } => &mut self.rejected_poison,
            RejectReason::Invalid { .. } => &mut self.rejected_invalid,
        };
        *counter += 1;
    }
}
