//! One lane: a place for one shard, with the sequences that run on it.

use trunkline_kv::{KvCache, StorePins};

use crate::cells::Cells;
use crate::config::SchedulerConfig;
use crate::estimate::Throughput;
use crate::event::{LaneId, Millis, StoreContents};
use crate::loss_log::LossLog;
use crate::running::Running;
use crate::sequence::{Sequence, SequenceKey};
use crate::shard::Shard;
use crate::stats::Stats;

/// A shard, the sequences that run on it, and its measured speed. The queue is shared by all lanes.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) id: LaneId,
    /// The connected shard. Nothing runs while there is none.
    pub(crate) shard: Option<Shard>,
    pub(crate) running: Running,
    pub(crate) throughput: Throughput,
    /// The suspect that runs by itself (`loss.rs`).
    pub(crate) suspect: Option<SequenceKey>,
    pub(crate) losses: LossLog,
    pub(crate) cells: Cells,
    /// The moment at which the last shard was lost, while no other one is connected.
    pub(crate) lost_at: Option<Millis>,
    /// The store's pins while no shard has the store open.
    store_pins: StorePins,
    next_wire_id: u64,
}

impl Lane {
    pub(crate) fn new(id: LaneId) -> Self {
        Self {
            id,
            shard: None,
            running: Running::default(),
            throughput: Throughput::default(),
            suspect: None,
            losses: LossLog::default(),
            cells: Cells::default(),
            lost_at: None,
            store_pins: StorePins::default(),
            next_wire_id: 1,
        }
    }

    /// The shard of a lane on which something runs or is planned.
    pub(crate) fn shard(&self) -> &Shard {
        self.shard.as_ref().expect("the lane has a shard")
    }

    /// The shard of a lane on which something runs or is planned, mutable.
    pub(crate) fn shard_mut(&mut self) -> &mut Shard {
        self.shard.as_mut().expect("the lane has a shard")
    }

    /// Opens the store of the connected shard. Returns false if there is no shard.
    pub(crate) fn open_store(&mut self, contents: StoreContents, config: &SchedulerConfig) -> bool {
        let Some(shard) = &mut self.shard else { return false };
        shard.add_store(contents, std::mem::take(&mut self.store_pins), config);
        true
    }

    /// Takes the shard away with everything that ran on it, but keeps the store's pins and the counters. Returns it, or
    /// none if there was no shard.
    pub(crate) fn disconnect(&mut self, now: Millis, counters: &mut Stats) -> Option<Shard> {
        let mut shard = self.shard.take()?;
        self.lost_at = Some(now);
        if let Some(store) = shard.kv.store_mut() {
            self.store_pins = store.take_pins();
        }
        shard.add_counters(counters);
        self.running.clear();
        Some(shard)
    }

    /// The moment at which sequences stop waiting for another shard; none while one is connected, and before the first.
    pub(crate) fn gives_up_at(&self, config: &SchedulerConfig) -> Option<Millis> {
        self.lost_at.map(|at| at.plus(config.shard_patience_ms))
    }

    pub(crate) fn new_wire_id(&mut self) -> u64 {
        self.next_wire_id += 1;
        self.next_wire_id - 1
    }

    pub(crate) fn kv(&self) -> Option<&KvCache> {
        self.shard.as_ref().map(|shard| &shard.kv)
    }

    /// The most sequences that may run at once: each of them needs a chunk and a token of every step.
    pub(crate) fn max_running(&self, config: &SchedulerConfig) -> usize {
        let Some(shard) = &self.shard else { return 0 };
        let max_chunks = shard.limits.max_step_sequences;
        max_chunks.min(self.max_step_tokens(config)).min(config.max_running_sequences).max(1) as usize
    }

    /// The token budget of one step.
    pub(crate) fn max_step_tokens(&self, config: &SchedulerConfig) -> u32 {
        let of_shard = self.shard.as_ref().map_or(0, |shard| shard.limits.max_step_tokens);
        of_shard.min(config.max_step_tokens).max(1)
    }

    /// The number of a sequence's tokens that a prefix hit would spare now, from the pool or from the store.
    pub(crate) fn num_cached_tokens(&self, sequence: &Sequence) -> u32 {
        let hit = self.kv().map(|kv| kv.lookup(&sequence.request.salt, sequence.shareable()));
        hit.map_or(0, |hit| hit.num_tokens().max(hit.num_block_tokens() + hit.num_stored_tokens()))
    }
}
