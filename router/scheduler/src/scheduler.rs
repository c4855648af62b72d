//! The scheduler's interface: it composes the parts and hands each event to the module that handles it.

use std::collections::BTreeMap;
use std::sync::Arc;

use trunkline_kv::{KvCache, KvEvent, TenantUsage};

use crate::adapters::AdapterUses;
use crate::balance::take_over;
use crate::cells::Cells;
use crate::config::SchedulerConfig;
use crate::consumption::Consumption;
use crate::drain::{preempt_overdue, set_drain};
use crate::event::{
    EndReason, Event, LaneId, Millis, SequenceId, SequenceRequest, ShardLimits, Update, Usage,
};
use crate::in_flight::SequenceInStep;
use crate::lane::{Lane, OtherLanes, gives_up_at};
use crate::lifecycle::Lifecycle;
use crate::loss::{end_stranded, requeue_lost};
use crate::lower_tier::LowerTier;
use crate::output;
use crate::pins::Nodes;
use crate::plan::{LateMask, StepPlan};
use crate::planner::make_plan;
use crate::poison::Poisons;
use crate::refusal::{refusal, reject};
use crate::results::take_result;
use crate::sequence::SequenceKey;
use crate::sequences::Sequences;
use crate::stats::{LaneStats, Stats};
use crate::transfers::{abandon_overdue_restores, escape_late, take_transfers};
use crate::{invariants, shard::Shard};

/// The most waiting sequences whose adapters are reported.
const MAX_SEQUENCES_REPORTED: usize = 256;

/// The queue of all requests, and the token budget and KV index of each lane. One task owns it; it never waits, reads
/// no clock and does no I/O.
///
/// ```
#[doc = include_str!("../examples/one_request.rs")]
/// ```
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    sequences: Sequences,
    /// The lanes by their ids.
    lanes: Vec<Lane>,
    cells: Cells,
    poisons: Poisons,
    counters: Stats,
    records_kv_events: bool,
    /// True if sequences may wait for a lane that is away.
    awaits_lanes: bool,
    /// The time of the last call.
    now: Millis,
}

impl Scheduler {
    /// Creates a scheduler without shards. Requests wait until [`Event::ShardReady`].
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            sequences: Sequences::new(&config),
            lanes: (0..config.num_lanes.max(1)).map(|id| Lane::new(LaneId(id))).collect(),
            config,
            cells: Cells::default(),
            poisons: Poisons::default(),
            counters: Stats::default(),
            records_kv_events: false,
            awaits_lanes: false,
            now: Millis(0),
        }
    }

    /// Returns the ids of all lanes, with and without shards.
    pub fn lane_ids(&self) -> impl Iterator<Item = LaneId> + use<> {
        (0..self.lanes.len() as u32).map(LaneId)
    }

    /// Takes one event at time `now` and appends the answers to `updates`.
    ///
    /// # Panics
    ///
    /// Panics if a `Submit` uses the id of a sequence that has not ended, or an event names a lane that does not exist.
    /// Both are bugs of the caller.
    pub fn handle(&mut self, now: Millis, event: Event, updates: &mut Vec<Update>) {
        self.set_now(now);
        match event {
            Event::ShardReady(lane, limits) => self.shard_ready(lane, now, limits, updates),
            Event::ShardLost { lane, may_return } => {
                self.shard_lost(lane, now, updates);
                self.lane_mut(lane).is_closed = !may_return;
                self.awaits_lanes = true;
                self.give_up(now, updates);
            }
            Event::Drain { lane, patience_ms } => set_drain(&mut self.parts(lane, now, updates), patience_ms),
            Event::StoreReady(lane, contents) => {
                let mut parts = self.parts(lane, now, updates);
                if parts.lane.open_store(contents, parts.config) {
                    parts.requeue_all();
                }
            }
            Event::StepResult(lane, result) => take_result(&mut self.parts(lane, now, updates), result),
            Event::Transfers(lane, transfers) => {
                take_transfers(&mut self.parts(lane, now, updates), &transfers);
            }
            Event::Submit(request) => submit(&mut self.parts(LaneId::FIRST, now, updates), *request),
            Event::Allow { id, allowed } => {
                if let Some(key) = self.sequences.key(id) {
                    output::allow(&mut self.parts_of(key, now, updates), key, allowed);
                }
            }
            Event::Finish(id) => self.end(id, EndReason::Finished, now, updates),
            Event::Abort(id) => self.end(id, EndReason::Aborted, now, updates),
            Event::Shares(shares) => {
                for shard in self.lanes.iter_mut().filter_map(|lane| lane.shard.as_mut()) {
                    shard.kv.set_shares(&shares);
                }
                self.config.shares = shares;
            }
            Event::Weights(weights) => {
                self.sequences.set_weights(&weights);
                self.config.weights = weights;
            }
        }
        self.settle();
    }

    /// Returns the lane's next plan, or none if run-ahead is full, it is too early, or there is nothing to do. Call it
    /// until it returns none: after every event, and at [`Scheduler::next_wakeup`].
    pub fn plan(&mut self, lane: LaneId, now: Millis, updates: &mut Vec<Update>) -> Option<StepPlan> {
        self.set_now(now);
        while let Some(key) = self.sequences.first_expired(now) {
            self.parts_of(key, now, updates).end(key, EndReason::DeadlineExceeded);
        }
        self.give_up(now, updates);
        // Before any lane plans, so that it finds what leaves the others.
        for id in self.lane_ids() {
            if self.lane(id).drain.is_some() {
                preempt_overdue(&mut self.parts(id, now, updates));
            }
        }
        self.let_escape(now, updates);
        if self.lanes.len() > 1
            && let Some((from, key)) = take_over(&mut self.parts(lane, now, updates))
        {
            self.parts(from, now, updates).stop(key);
        }
        let parts = &mut self.parts(lane, now, updates);
        parts.lane.passes_until = None;
        abandon_overdue_restores(parts);
        let plan = make_plan(parts);
        self.settle();
        plan
    }

    /// Returns the sequences of a step in flight, in the order of its chunks; none if the step is not in flight.
    pub fn step_in_flight(
        &self,
        lane: LaneId,
        step_id: u64,
    ) -> Option<impl ExactSizeIterator<Item = SequenceInStep<'_>> + Clone> {
        let step = self.lane(lane).shard.as_ref()?.steps.iter().find(|step| step.step_id == step_id)?;
        Some(step.chunks.iter().map(|chunk| SequenceInStep::new(chunk, &self.sequences[chunk.key])))
    }

    /// Returns the masks that the lane's steps in flight wait for, to be sent to its shard at once. Call it after every
    /// event and every plan.
    pub fn take_late_masks(&mut self, lane: LaneId) -> Vec<LateMask> {
        let shard = self.lane_mut(lane).shard.as_mut();
        shard.map(|shard| shard.outbox.take_late_masks()).unwrap_or_default()
    }

    /// The earliest moment at which there is something to do without an event: a deadline of a sequence, a restore, a
    /// drain or the return of a shard, the time for the next plan or for a sequence that was left to another lane, or
    /// the time from which a step is late. Call [`Scheduler::plan`] then.
    pub fn next_wakeup(&self) -> Option<Millis> {
        let shards = || self.lanes.iter().filter_map(|lane| lane.shard.as_ref());
        let of_restores = shards().filter_map(|shard| shard.restores.next_deadline());
        let of_plans = shards().filter_map(|shard| shard.steps.waits_until());
        let drains = self.lanes.iter().filter(|lane| lane.running.len() > 0).filter_map(|lane| lane.drain);
        let of_drains = drains.filter(|drain| !drain.is_due).map(|drain| drain.until);
        let of_passed = self.lanes.iter().filter_map(|lane| lane.passes_until);
        let of_late =
            shards().filter(|_| self.lanes.len() > 1).filter_map(|shard| shard.steps.next_lateness());
        // Lost shards matter only to sequences that wait for others.
        let of_lost_shards = if self.awaits_lanes && self.sequences.len() > 0 {
            gives_up_at(self.lanes.iter(), &self.config)
        } else {
            None
        };
        let of_sequences = self.sequences.next_deadline().into_iter().chain(of_lost_shards);
        let of_lanes = of_passed.chain(of_drains).chain(of_late);
        of_sequences.chain(of_restores).chain(of_plans).chain(of_lanes).min()
    }

    /// A lane's KV index, for reading; none while it has no shard.
    pub fn kv(&self, lane: LaneId) -> Option<&KvCache> {
        self.lane(lane).kv()
    }

    /// Replaces `usages` with each tenant's use of the pools of all lanes, in the order in which the tenants came.
    pub fn tenants(&self, usages: &mut Vec<TenantUsage>) {
        usages.clear();
        let mut indexes = self.lanes.iter().filter_map(Lane::kv);
        usages.extend(indexes.next().into_iter().flat_map(|kv| kv.device().usages()).cloned());
        for kv in indexes {
            let places = usages.iter().enumerate().map(|(place, usage)| (usage.tenant.clone(), place));
            let places: BTreeMap<Option<Arc<str>>, usize> = places.collect();
            for usage in kv.device().usages() {
                match places.get(&usage.tenant) {
                    Some(&place) => usages[place].add(usage),
                    None => usages.push(usage.clone()),
                }
            }
        }
    }

    /// Passes what was done for each tenant since the last call to `take`. The name is `None` for requests without a
    /// tenant.
    pub fn take_consumption(&mut self, take: impl FnMut(Option<&str>, Consumption)) {
        self.sequences.take_consumption(take);
    }

    /// The nodes of a lane's KV index, for users who pin or remove them.
    pub fn nodes(&mut self, lane: LaneId) -> Nodes<'_> {
        Nodes::new(self.lane_mut(lane).shard.as_mut())
    }

    /// A lane's store, for the tier below it.
    pub fn lower_tier(&mut self, lane: LaneId) -> LowerTier<'_> {
        let lane = self.lane_mut(lane);
        LowerTier::new(lane.shard.as_mut(), &lane.throughput)
    }

    /// Gauges and counters of one lane. O(1).
    pub fn lane_stats(&self, lane: LaneId) -> LaneStats {
        let lane = self.lane(lane);
        let counts = lane.kv().map(|kv| kv.device().counts()).unwrap_or_default();
        LaneStats {
            is_connected: lane.shard.is_some(),
            is_draining: lane.drain.is_some(),
            is_drained: lane.is_drained(),
            num_running: lane.running.len() as u64,
            steps: lane.num_steps,
            scheduled_tokens: lane.num_scheduled_tokens,
            prefix_hit_tokens: lane.num_hit_tokens,
            blocks_held: counts.held.into(),
            blocks_cached: counts.cached.into(),
            blocks_total: counts.total.into(),
            escapes: lane.num_escapes,
            losses: lane.losses.count() - lane.num_stops,
            excused_losses: lane.num_excused_losses,
        }
    }

    /// The use of adapters. Its size, and the time that it takes, are bounded.
    pub fn adapter_uses(&self) -> AdapterUses {
        let shards = || self.lanes.iter().filter_map(|lane| lane.shard.as_ref());
        if shards().all(|shard| shard.adapters.num_slots() == 0) {
            return AdapterUses::default();
        }
        let mut waiting = Vec::new();
        for key in self.sequences.waiting().take(MAX_SEQUENCES_REPORTED) {
            if let Some(adapter) = &self.sequences[key].request.adapter
                && !waiting.contains(&adapter.name)
            {
                waiting.push(adapter.name.clone());
            }
        }
        let slots_of = |lane: &Lane| lane.shard.iter().flat_map(|shard| shard.adapters.in_use()).collect();
        AdapterUses { lanes: self.lanes.iter().map(slots_of).collect(), waiting }
    }

    /// Gauges and counters of all lanes together. O(1).
    pub fn stats(&self) -> Stats {
        let mut stats = self.counters;
        stats.num_waiting = self.sequences.queue().num_waiting() as u64;
        for lane in &self.lanes {
            stats.num_running += lane.running.len() as u64;
            stats.run_ms = stats.run_ms.max(lane.throughput.mean_run_ms());
            let error_ppm = (lane.throughput.step_cost.error() * 1e6) as u64;
            stats.step_error_ppm = stats.step_error_ppm.max(error_ppm);
            stats.excused_losses += lane.num_excused_losses;
            stats.escapes += lane.num_escapes;
            if let Some(shard) = &lane.shard {
                shard.add_gauges(&mut stats);
                shard.add_counters(&mut stats);
            }
        }
        stats
    }

    /// Sets whether events are recorded for [`Scheduler::take_kv_events`]. Unrecorded events cost nothing.
    pub fn record_kv_events(&mut self, is_on: bool) {
        self.records_kv_events = is_on;
        for lane in &mut self.lanes {
            lane.was_cleared &= is_on;
            if let Some(shard) = &mut lane.shard {
                shard.kv.record_events(is_on);
            }
        }
    }

    /// Returns the events of a lane's KV index since the last call. Call it after every event and plan.
    pub fn take_kv_events(&mut self, lane: LaneId) -> Vec<KvEvent> {
        let lane = self.lane_mut(lane);
        let was_cleared = std::mem::take(&mut lane.was_cleared);
        let mut events = if was_cleared { vec![KvEvent::AllBlocksCleared] } else { Vec::new() };
        if let Some(shard) = &mut lane.shard {
            events.append(&mut shard.kv.take_events());
        }
        events
    }

    /// Panics where counts, lists and the KV index disagree. For tests; costs O(everything).
    pub fn check_invariants(&self) {
        invariants::check(&self.config, &self.sequences, &self.lanes);
    }

    fn lane(&self, lane: LaneId) -> &Lane {
        &self.lanes[lane.0 as usize]
    }

    fn lane_mut(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.lanes[lane.0 as usize]
    }

    fn parts<'a>(&'a mut self, lane: LaneId, now: Millis, updates: &'a mut Vec<Update>) -> Lifecycle<'a> {
        let (lane, others) = OtherLanes::split(&mut self.lanes, lane);
        Lifecycle {
            config: &self.config,
            now,
            sequences: &mut self.sequences,
            lane,
            others,
            cells: &mut self.cells,
            poisons: &mut self.poisons,
            counters: &mut self.counters,
            updates,
        }
    }

    /// The parts that one sequence concerns: the lane on which it runs, or any while it waits.
    fn parts_of<'a>(
        &'a mut self,
        key: SequenceKey,
        now: Millis,
        updates: &'a mut Vec<Update>,
    ) -> Lifecycle<'a> {
        let lane = self.sequences[key].run.as_ref().map_or(LaneId::FIRST, |run| run.lane);
        self.parts(lane, now, updates)
    }

    /// Tells all lanes the time, unless they know it: the lanes are planned one after the other, and each call would
    /// visit all of them.
    fn set_now(&mut self, now: Millis) {
        if std::mem::replace(&mut self.now, now) == now {
            return;
        }
        for shard in self.lanes.iter_mut().filter_map(|lane| lane.shard.as_mut()) {
            shard.kv.set_now(now.0);
            shard.kv.expire_pins();
        }
    }

    fn settle(&mut self) {
        for shard in self.lanes.iter_mut().filter_map(|lane| lane.shard.as_mut()) {
            shard.kv.device_mut().settle();
        }
    }

    fn shard_ready(&mut self, lane: LaneId, now: Millis, limits: ShardLimits, updates: &mut Vec<Update>) {
        self.shard_lost(lane, now, updates);
        let mut shard = Shard::new(limits, &self.config, self.records_kv_events);
        shard.kv.set_now(now.0);
        let lane = self.lane_mut(lane);
        (lane.shard, lane.lost_at, lane.is_closed) = (Some(shard), None, false);
        lane.shared.close();
        self.awaits_lanes = true;
        self.give_up(now, updates);
    }

    /// Ends the waiting sequences that no connected shard takes, if no other one is expected.
    fn give_up(&mut self, now: Millis, updates: &mut Vec<Update>) {
        if self.awaits_lanes && gives_up_at(self.lanes.iter(), &self.config).is_some_and(|at| at <= now) {
            self.awaits_lanes = false;
            end_stranded(&mut self.parts(LaneId::FIRST, now, updates));
        }
    }

    /// Lets the sequences of late lanes go on with others.
    fn let_escape(&mut self, now: Millis, updates: &mut Vec<Update>) {
        if self.lanes.len() == 1 {
            return;
        }
        for lane in self.lane_ids() {
            let shard = self.lane_mut(lane).shard.as_mut();
            if shard.is_some_and(|shard| shard.steps.notice_lateness(now)) {
                escape_late(&mut self.parts(lane, now, updates));
            }
        }
    }

    fn shard_lost(&mut self, lane: LaneId, now: Millis, updates: &mut Vec<Update>) {
        let records_kv_events = self.records_kv_events;
        let mut parts = self.parts(lane, now, updates);
        let is_stop = parts.lane.is_drained();
        if let Some(lost) = parts.lane.disconnect(now, parts.counters) {
            requeue_lost(&mut parts, &lost);
            parts.lane.was_cleared = records_kv_events;
            parts.lane.num_stops += u64::from(is_stop);
        }
    }

    /// Ends a sequence on request. It may have ended already.
    fn end(&mut self, id: SequenceId, reason: EndReason, now: Millis, updates: &mut Vec<Update>) {
        if let Some(key) = self.sequences.key(id)
            && !self.sequences[key].is_ending()
        {
            self.parts_of(key, now, updates).end(key, reason);
        }
    }
}

fn submit(parts: &mut Lifecycle<'_>, request: SequenceRequest) {
    let id = request.id;
    assert!(parts.sequences.key(id).is_none(), "a sequence id is used once: {}", id.0);
    if let Some(reason) = refusal(parts, &request) {
        reject(parts, id, reason);
        return;
    }
    let is_scored = request.sampling.prompt_logprobs.is_some() && request.token_ids.len() > 1;
    if request.max_new_tokens == 0 && !is_scored {
        let usage = Usage { prompt_tokens: request.token_ids.len() as u32, ..Usage::default() };
        parts.updates.push(Update::Ended { id, reason: EndReason::Length, usage });
        return;
    }
    let is_apart = parts.poisons.is_apart(&request, parts.now);
    let key = parts.sequences.insert(request, parts.now);
    if is_apart {
        parts.cells.isolate(&mut parts.sequences[key], parts.now);
    }
    parts.enter_queue(key);
}
