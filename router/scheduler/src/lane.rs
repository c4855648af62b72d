//! One lane: a place for one shard, with the sequences that run on it.

use trunkline_kv::{KvCache, StoreIndex, StorePins};

use crate::cells::Turns;
use crate::config::SchedulerConfig;
use crate::estimate::Throughput;
use crate::event::{LaneId, Millis, StoreContents};
use crate::loss_log::LossLog;
use crate::running::Running;
use crate::sequence::{Loss, Sequence, SequenceKey};
use crate::shard::Shard;
use crate::shared_store::{SharedStore, StoreSource};
use crate::stats::Stats;

/// The drain of a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    /// The moment from which its sequences leave.
    pub(crate) until: Millis,
    /// True once that moment has come.
    pub(crate) is_due: bool,
}

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
    /// Set while the lane drains (`drain.rs`).
    pub(crate) drain: Option<Drain>,
    /// True if the last step was the suspect's, and the others have the next one.
    pub(crate) others_are_next: bool,
    /// The moment at which the lane takes a sequence that it passes over, though it has room for it.
    pub(crate) passes_until: Option<Millis>,
    /// The moment at which the lane last looked for a sequence to take over (`balance.rs`).
    pub(crate) balanced_at: Option<Millis>,
    pub(crate) losses: LossLog,
    /// The turns of the cells, while sequences are separated.
    pub(crate) turns: Turns,
    /// The moment at which the last shard was lost, while no other one is connected.
    pub(crate) lost_at: Option<Millis>,
    /// True once no other shard will come.
    pub(crate) is_closed: bool,
    /// Losses for which sequences are to blame.
    pub(crate) num_excused_losses: u64,
    /// Losses of a shard on which nothing was left, because it was drained.
    pub(crate) num_stops: u64,
    /// Plans that were made.
    pub(crate) num_steps: u64,
    /// Tokens that plans asked to compute.
    pub(crate) num_scheduled_tokens: u64,
    /// Sequences that escaped from late steps.
    pub(crate) num_escapes: u64,
    /// Prompt tokens of sequences that first started here, and that a prefix hit spared.
    pub(crate) num_hit_tokens: u64,
    /// A shard was lost with its KV index, which the events do not report yet.
    pub(crate) was_cleared: bool,
    /// The store's pins while no shard has the store open.
    store_pins: StorePins,
    /// The store, as other lanes see it.
    pub(crate) shared: SharedStore,
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
            drain: None,
            others_are_next: false,
            passes_until: None,
            balanced_at: None,
            losses: LossLog::default(),
            turns: Turns::default(),
            lost_at: None,
            is_closed: false,
            num_excused_losses: 0,
            num_stops: 0,
            num_steps: 0,
            num_scheduled_tokens: 0,
            num_escapes: 0,
            num_hit_tokens: 0,
            was_cleared: false,
            store_pins: StorePins::default(),
            shared: SharedStore::default(),
            next_wire_id: 1,
        }
    }

    /// Returns true if the lane has a shard and does not drain.
    pub(crate) fn serves(&self) -> bool {
        self.shard.is_some() && self.drain.is_none()
    }

    /// Returns true if the lane drains and nothing is left on its shard.
    pub(crate) fn is_drained(&self) -> bool {
        let has_steps = self.shard.as_ref().is_some_and(|shard| shard.steps.len() > 0);
        self.drain.is_some() && self.running.len() == 0 && self.running.num_leaving() == 0 && !has_steps
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
        self.shared.open(contents.folder.clone(), contents.reads_others);
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
        self.shared.lose(shard.kv.take_store());
        self.running.clear();
        Some(shard)
    }

    /// Takes a loss of a sequence on this lane for explained.
    pub(crate) fn explain(&mut self, loss: Loss, now: Millis) {
        self.num_excused_losses += u64::from(self.losses.explain(loss, now));
    }

    /// Returns true if the lane computes prompts for others, while there are others.
    pub(crate) fn is_prefill(&self, config: &SchedulerConfig) -> bool {
        self.id.0 < config.num_prefill_lanes
    }

    /// Names the store as it is now.
    pub(crate) fn source(&self) -> StoreSource {
        StoreSource { lane: self.id, opening: self.shared.opening }
    }

    /// Returns true if a shard is connected whose store other lanes can read.
    pub(crate) fn has_shared_store(&self) -> bool {
        self.shard.is_some() && self.shared_index().is_some()
    }

    /// Returns the index of the store, if other lanes can read it.
    pub(crate) fn shared_index(&self) -> Option<&StoreIndex> {
        self.shared.folder.as_ref()?;
        self.shard.as_ref().map_or(self.shared.lost.as_ref(), |shard| shard.kv.store())
    }

    /// Returns the index of the store, of the connected shard or the lost one.
    pub(crate) fn shared_index_mut(&mut self) -> Option<&mut StoreIndex> {
        match &mut self.shard {
            Some(shard) => shard.kv.store_mut(),
            None => self.shared.lost.as_mut(),
        }
    }

    /// Returns true if a shard is connected and none of its steps is late.
    pub(crate) fn is_well(&self, now: Millis) -> bool {
        self.shard.as_ref().is_some_and(|shard| !shard.steps.are_late(now))
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

/// All lanes but the one that an event or plan concerns.
#[derive(Debug)]
pub(crate) struct OtherLanes<'a> {
    before: &'a mut [Lane],
    after: &'a mut [Lane],
}

impl<'a> OtherLanes<'a> {
    /// Splits the lanes into the one with this id and the others.
    pub(crate) fn split(lanes: &'a mut [Lane], id: LaneId) -> (&'a mut Lane, Self) {
        let (before, rest) = lanes.split_at_mut(id.0 as usize);
        let (lane, after) = rest.split_first_mut().expect("the lane exists");
        (lane, Self { before, after })
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Lane> {
        self.before.iter().chain(self.after.iter())
    }

    /// The lane with this id, which is one of the others.
    pub(crate) fn get(&self, id: LaneId) -> &Lane {
        let place = id.0 as usize;
        if place < self.before.len() {
            &self.before[place]
        } else {
            &self.after[place - self.before.len() - 1]
        }
    }

    /// The lane with this id, which is one of the others, mutable.
    pub(crate) fn get_mut(&mut self, id: LaneId) -> &mut Lane {
        let (place, num_before) = (id.0 as usize, self.before.len());
        if place < num_before { &mut self.before[place] } else { &mut self.after[place - num_before - 1] }
    }
}

/// The moment from which no lane that is away is expected any more, so that sequences end which no connected one takes.
/// While none is connected, a lane that loads for the first time is expected forever, and there is no such moment.
pub(crate) fn gives_up_at<'a>(
    lanes: impl Iterator<Item = &'a Lane>,
    config: &SchedulerConfig,
) -> Option<Millis> {
    let (mut latest, mut is_connected, mut is_loading) = (Millis(0), false, false);
    for lane in lanes {
        match lane.lost_at {
            _ if lane.shard.is_some() => is_connected = true,
            _ if lane.is_closed => {}
            Some(lost_at) => latest = latest.max(lost_at.plus(config.shard_patience_ms)),
            None => is_loading = true,
        }
    }
    (is_connected || !is_loading).then_some(latest)
}
