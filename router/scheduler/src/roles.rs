//! Lanes that compute prompts for the others (`SchedulerConfig::num_prefill_lanes`).
//!
//! A prompt of which more than one block has to be computed runs on a prefill lane, up to the end of its last whole
//! block. Once its blocks are in the lane's store, the sequence goes back to the queue, and one of the other lanes
//! takes it: it reads the blocks from there (`neighbours.rs`) and computes the rest. So the steps of the other lanes
//! have no long prompts.
//!
//! Roles are a preference. A sequence is handed over at most once, and what another lane cannot read it computes
//! itself. While no lane of one role serves, the lanes of the other one do everything.

use crate::event::LaneId;
use crate::lane::Lane;
use crate::lifecycle::Lifecycle;
use crate::sequence::{Phase, Sequence, SequenceKey};
use trunkline_kv::CachePriority;

/// The division of work between the lanes that serve.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Roles {
    /// Lanes with a lower number compute prompts for the others; 0 if all lanes do everything.
    num_prefill_lanes: u32,
    /// Tokens per block, the most of all lanes, so that they agree on which sequences are long.
    block_size: u32,
}

impl Roles {
    /// Returns the roles of the lanes as they serve now.
    pub(crate) fn of(parts: &Lifecycle<'_>) -> Self {
        let num_prefill_lanes = parts.config.num_prefill_lanes;
        if num_prefill_lanes == 0 {
            return Self { num_prefill_lanes, block_size: 1 };
        }
        let shards = parts.lanes().filter_map(|lane| lane.shard.as_ref());
        let block_size = shards.map(|shard| shard.limits.block_size).max().unwrap_or(1);
        let serving = || parts.lanes().filter(|lane| lane.serves());
        let is_divided = serving().any(|lane| lane.is_prefill(parts.config) && lane.has_shared_store())
            && serving().any(|lane| !lane.is_prefill(parts.config) && lane.shared.reads_others());
        Self { num_prefill_lanes: if is_divided { num_prefill_lanes } else { 0 }, block_size }
    }

    /// Returns true if a lane leaves long prompts to others.
    pub(crate) fn is_for_decodes(self, lane: LaneId) -> bool {
        self.num_prefill_lanes > 0 && lane.0 >= self.num_prefill_lanes
    }

    /// Returns true if a waiting sequence may run on a lane: it is of the lane's kind, or fits no lane of its own kind.
    pub(crate) fn let_take(self, parts: &Lifecycle<'_>, lane: LaneId, sequence: &Sequence) -> bool {
        let is_for = |lane: LaneId| self.is_long(sequence) == (lane.0 < self.num_prefill_lanes);
        let takes = |other: &Lane| other.serves() && other.shard().takes(sequence);
        self.num_prefill_lanes == 0
            || is_for(lane)
            || !parts.lanes().any(|other| is_for(other.id) && takes(other))
    }

    /// Returns true if a waiting sequence has more to compute than a lane of decodes should.
    fn is_long(self, sequence: &Sequence) -> bool {
        let num_missing = sequence.num_tokens().saturating_sub(sequence.wait.num_readable_tokens);
        !sequence.was_handed_over && num_missing > self.block_size
    }

    /// Returns the position at which a lane hands a waiting sequence over that it is about to take. None if it keeps
    /// the sequence: it is short, its blocks are not stored, or its prompt is all that is asked for.
    pub(crate) fn hand_over_at(self, lane: &Lane, sequence: &Sequence) -> Option<u32> {
        let is_kept = lane.id.0 >= self.num_prefill_lanes
            || !self.is_long(sequence)
            || sequence.suspected.is_some()
            || sequence.is_scoring()
            || sequence.request.pooling.is_some()
            || sequence.request.max_new_tokens == 0
            || sequence.request.retention.cache_priority == CachePriority::Low;
        let block_size = lane.shard().limits.block_size;
        (!is_kept).then(|| (sequence.num_tokens() - 1) / block_size * block_size)
    }
}

/// Returns the sequences to the queue whose prompts are computed and stored for another lane.
pub(crate) fn hand_over(parts: &mut Lifecycle<'_>) {
    if !parts.lane.is_prefill(parts.config) {
        return;
    }
    let shard = parts.lane.shard();
    let is_ready = |&key: &SequenceKey| {
        let run = parts.sequences[key].run();
        run.phase == Phase::Running
            && run.hand_over_at.is_some_and(|at| run.acknowledged >= at)
            && run.steps_in_flight == 0
            && !shard.kv.is_storing(&run.table)
    };
    let ready: Vec<SequenceKey> = parts.lane.running.keys().iter().copied().filter(is_ready).collect();
    for key in ready {
        parts.sequences[key].was_handed_over = true;
        parts.counters.hand_overs += 1;
        parts.stop(key);
    }
}
