//! The run itself: the events on the clock, the scheduler that handles them, and the execution of its plans.

mod adapters;
mod checks;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use trunkline_scheduler::{
    AdapterLoad, BlockKey, Consumption, EndReason, Event, LaneId, Millis, NodeId, RejectReason, Restore,
    Scheduler, SequenceId, ShardLimits, SlotId, Stats, StepPlan, StepResult, StoreOutcome, TokenScore,
    Transfers, Update,
};

use super::model::{Known, Model};
use super::rng::{Rng, mix};
use super::scenario::{Arrival, Client, Drain, Outage, Poison, Scenario};
use super::shard::FakeShard;
use super::store::{FakeStore, Record, Write};
use super::{Blow, Options, Report};

#[derive(Clone, Debug)]
enum Happening {
    Arrive(usize),
    Leave(SequenceId),
    /// The router finds a stop string.
    Finish(SequenceId),
    /// The router has a grammar's answer.
    Allow(SequenceId),
    ShardLost(Outage),
    /// A request crashes a shard.
    Crash(ShardName),
    ShardBack(LaneId, ShardLimits),
    Drain(Drain),
    /// A lane that drained serves again.
    Return(LaneId),
    /// A shard answers a step.
    Result(ShardName, StepResult),
    /// A shard has written blocks to the store.
    Written(ShardName, Vec<Write>),
    /// A shard has read blocks from the store.
    Read(ShardName, Restore, ReadFrom),
    /// A shard has loaded an adapter, or failed to.
    Loaded(ShardName, AdapterLoad),
    /// A user removes a node, or a prompt lacks blocks that the tier below has.
    Visit,
    /// Blocks of the tier below are in the lane's store, in reserved slots.
    Fetched(LaneId, Vec<Write>),
    Wake,
}

/// A lane's n-th shard.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ShardName {
    lane: LaneId,
    number: u64,
}

/// The store that is read, and its opening when the read was chosen, or one before. The plan that begins a read may be
/// held back.
#[derive(Clone, Copy, Debug)]
struct ReadFrom {
    lane: usize,
    opening: u64,
}

/// A lane with its shard and its store.
#[derive(Default)]
struct Lane {
    shard: Option<FakeShard>,
    store: Option<FakeStore>,
    num_shards: u64,
    /// The openings of all stores when its last plan was made.
    openings: Vec<u64>,
    free_at: Millis,
    /// The result of the step that awaits masks.
    blocked: Option<StepResult>,
    /// The sampling seeds of the sequences of each step in flight.
    in_flight: VecDeque<Vec<u64>>,
    /// The moment since which it is idle beside a waiting sequence.
    idle_since: Option<Millis>,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    options: Options,
    rng: Rng,
    now: Millis,
    next_happening: u64,
    happenings: BTreeMap<(Millis, u64), Happening>,
    scheduler: Scheduler,
    lanes: Vec<Lane>,
    longest_outage_ms: u64,
    known: BTreeMap<u64, Known>,
    arrivals: BTreeMap<SequenceId, &'a Arrival>,
    submitted: BTreeMap<SequenceId, Millis>,
    /// Sequences whose pin's outcome was reported.
    pinned: BTreeSet<SequenceId>,
    /// Requests whose vectors were reported.
    pooled: BTreeSet<SequenceId>,
    /// The reported logprobs of prompts.
    scores: BTreeMap<SequenceId, Vec<TokenScore>>,
    /// The drafts that the grammar of a sequence is asked about.
    asked_drafts: BTreeMap<SequenceId, Vec<u32>>,
    /// The consumption of each tenant, as the scheduler reported it.
    consumption: BTreeMap<Option<Box<str>>, Consumption>,
    last_token_at: BTreeMap<SequenceId, Millis>,
    /// Loads of adapters have numbers of their own, so that they change no other number of a seed.
    adapter_rng: Rng,
    /// The content hashes of adapters that could not be loaded, at least once.
    failed_adapters: BTreeSet<Vec<u8>>,
    /// The device time of the results that the scheduler took.
    device_time_us: u64,
    report: Report,
}

/// The most steps of a run, for each token of its requests and for each of its shards. A run with more makes no
/// progress. The highest number over 20,000 seeds was 0.97.
const MAX_STEPS_PER_TOKEN: u64 = 2;
/// The most tokens that a run computes, for each token of its requests and for each of its shards. The highest number
/// over 20,000 seeds was 1.12.
const MAX_COMPUTED_PER_TOKEN: u64 = 2;
/// Visits go on for this long after the last request has arrived.
const MORE_VISITS_MS: u64 = 100;

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario, options: Options) -> Self {
        let mut world = Self {
            scenario,
            options,
            rng: Rng::new(scenario.seed ^ 0x5eed),
            now: Millis(0),
            next_happening: 0,
            happenings: BTreeMap::new(),
            scheduler: Scheduler::new(scenario.config.clone()),
            lanes: (0..scenario.config.num_lanes).map(|_| Lane::default()).collect(),
            longest_outage_ms: 0,
            known: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            submitted: BTreeMap::new(),
            pinned: BTreeSet::new(),
            pooled: BTreeSet::new(),
            scores: BTreeMap::new(),
            asked_drafts: BTreeMap::new(),
            consumption: BTreeMap::new(),
            last_token_at: BTreeMap::new(),
            adapter_rng: Rng::new(scenario.seed ^ 0x6c6f_6164),
            failed_adapters: BTreeSet::new(),
            device_time_us: 0,
            report: Report {
                trace_hash: 0,
                num_events: 0,
                num_losses: 0,
                num_stops: 0,
                num_outdated_reads: 0,
                crashed_lanes: BTreeSet::new(),
                longest_idle_ms: 0,
                longest_pause_ms: 0,
                lane_stats: Vec::new(),
                ended_at: Millis(0),
                stats: Stats::default(),
                ends: BTreeMap::new(),
                outputs: BTreeMap::new(),
                ended_ats: BTreeMap::new(),
                rejections: BTreeMap::new(),
                cached_tokens: BTreeMap::new(),
                started_at: BTreeMap::new(),
                first_token_at: BTreeMap::new(),
            },
        };
        for lane in world.scheduler.lane_ids() {
            world.at(Millis(0), Happening::ShardBack(lane, scenario.limits_of(lane)));
        }
        for (index, arrival) in scenario.arrivals.iter().enumerate() {
            world.at(arrival.at, Happening::Arrive(index));
            world.arrivals.insert(arrival.request.id, arrival);
            let request = &arrival.request;
            world.known.insert(request.sampling.seed, Known::of(request, arrival.salt));
        }
        for outage in &scenario.outages {
            world.at(outage.at, Happening::ShardLost(*outage));
        }
        for drain in &scenario.drains {
            world.at(drain.at, Happening::Drain(*drain));
            world.at(drain.until, Happening::Return(drain.lane));
        }
        if let Some(plan) = scenario.store.filter(|plan| plan.visit_ms > 0) {
            let last = scenario.arrivals.iter().map(|arrival| arrival.at.0).max().unwrap_or(0);
            let times = (0..last + MORE_VISITS_MS).step_by(plan.visit_ms as usize);
            times.for_each(|time| world.at(Millis(time), Happening::Visit));
        }
        world
    }

    fn at(&mut self, time: Millis, happening: Happening) {
        self.happenings.insert((time, self.next_happening), happening);
        self.next_happening += 1;
    }

    /// Runs until no event is left, and returns the outcome. Panics if anything is wrong.
    pub(super) fn run(mut self) -> Report {
        let num_tokens = self.scenario.num_tokens() + 2 * self.scenario.arrivals.len() as u64;
        let num_crashes =
            self.scenario.poison.map_or(0, Poison::max_losses) + u64::from(self.options.blow.is_some());
        let num_faults =
            self.scenario.outages.len() + self.scenario.drains.len() + self.scenario.stalls.len();
        let num_shards = (self.lanes.len() + num_faults) as u64 + num_crashes;
        while let Some(((time, _), happening)) = self.happenings.pop_first() {
            self.now = time;
            if let Some((at, blow)) = self.options.blow
                && at == self.report.num_events
            {
                self.strike(blow);
            }
            self.report.num_events += 1;
            self.happen(happening);
            self.plan();
            self.stop_drained();
            self.note_idle_lanes();
            if self.report.num_events.is_multiple_of(7) {
                self.take_consumption();
            }
            let stats = self.scheduler.stats();
            let is_bounded = stats.steps <= MAX_STEPS_PER_TOKEN * num_tokens * num_shards
                && stats.scheduled_tokens <= MAX_COMPUTED_PER_TOKEN * num_tokens * num_shards;
            assert!(is_bounded, "the run makes no progress: {num_tokens} tokens to compute, {stats:?}");
        }
        self.report.ended_at = self.now;
        self.check_end();
        self.report
    }

    fn take_consumption(&mut self) {
        let consumption = &mut self.consumption;
        self.scheduler.take_consumption(|tenant, more| {
            *consumption.entry(tenant.map(Into::into)).or_default() += more;
        });
    }

    fn strike(&mut self, blow: Blow) {
        match blow {
            Blow::Abort(id) if self.submitted.contains_key(&id) => self.tell(Event::Abort(id)),
            Blow::Finish(id) if self.submitted.contains_key(&id) => self.tell(Event::Finish(id)),
            Blow::LoseShard(lane) if self.lanes[lane.0 as usize].shard.is_some() => {
                let outage = Outage::new(self.now, 3, self.scenario.limits_of(lane));
                self.happen(Happening::ShardLost(Outage { lane, ..outage }));
            }
            _ => {}
        }
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrive(index) => {
                let arrival = &self.scenario.arrivals[index];
                let id = arrival.request.id;
                self.submitted.insert(id, self.now);
                self.report.outputs.insert(id, Vec::new());
                if let Client::AbortsAfterMs(ms) = arrival.client {
                    self.at(self.now.plus(ms), Happening::Leave(id));
                }
                self.tell(Event::Submit(Box::new(arrival.request.clone())));
                if arrival.request.constrained {
                    self.allow_soon(id);
                }
            }
            Happening::Finish(id) => self.tell(Event::Finish(id)),
            Happening::Allow(id) => {
                let model = Model { vocab_size: self.scenario.limits.vocab_size };
                let seed = self.arrivals[&id].request.sampling.seed;
                let drafts = self.asked_drafts.remove(&id).unwrap_or_default();
                let allowed = model.follow(seed, &self.report.outputs[&id], &drafts);
                self.tell(Event::Allow { id, allowed });
            }
            Happening::Leave(id) => self.tell(Event::Abort(id)),
            Happening::ShardLost(outage) => self.lose_shard(outage),
            Happening::Drain(Drain { lane, patience_ms, .. }) => {
                self.tell(Event::Drain { lane, patience_ms: Some(patience_ms) });
            }
            Happening::Return(lane) => {
                self.tell(Event::Drain { lane, patience_ms: None });
                let is_back =
                    |happening: &Happening| matches!(happening, Happening::ShardBack(of, _) if *of == lane);
                if self.lane(lane).shard.is_none() && !self.happenings.values().any(is_back) {
                    self.happen(Happening::ShardBack(lane, self.scenario.limits_of(lane)));
                }
            }
            Happening::Crash(shard) => {
                if let Some(limits) = self.shard(shard).map(|shard| shard.limits) {
                    self.report.crashed_lanes.insert(shard.lane);
                    let outage = Outage::new(self.now, 2, limits);
                    self.lose_shard(Outage { lane: shard.lane, ..outage });
                }
            }
            Happening::ShardBack(lane, limits) => {
                // The link waits until nobody writes blocks of the tier below.
                self.end_fetches(lane);
                let beside = self.scenario.config.max_prefill_tokens_beside_decodes;
                let shard = FakeShard::new(limits, self.scenario.faults, beside);
                let of_lane = &mut self.lanes[lane.0 as usize];
                of_lane.num_shards += 1;
                (of_lane.free_at, of_lane.shard) = (self.now, Some(shard));
                self.note_openings(lane);
                self.tell(Event::ShardReady(lane, limits));
                self.open_store(lane, limits.block_size);
            }
            Happening::Result(name, result) => {
                // The router drops results of an earlier shard, and the scheduler those that come after a loss.
                let lane = &mut self.lanes[name.lane.0 as usize];
                let is_lost = lane.shard.is_none();
                if name.number != lane.num_shards || is_lost && self.scenario.twice == 0 {
                    return;
                }
                lane.in_flight.pop_front();
                let is_twice = self.rng.once_in(self.scenario.twice);
                if !is_lost {
                    self.device_time_us += result.device_time_us;
                }
                self.tell(Event::StepResult(name.lane, result.clone()));
                if is_twice {
                    self.tell(Event::StepResult(name.lane, result));
                }
            }
            Happening::Written(name, writes) => {
                if self.shard(name).is_some() {
                    let stores = writes.into_iter().map(|write| self.end_write(name.lane, write)).collect();
                    self.tell(Event::Transfers(name.lane, Transfers { stores, ..Transfers::default() }));
                }
            }
            Happening::Read(name, restore, from) => {
                let lane = &mut self.lanes[name.lane.0 as usize];
                if name.number != lane.num_shards {
                    return;
                }
                if lane.shard.is_none() {
                    return;
                }
                let Some(store) = &mut self.lanes[from.lane].store else { return };
                let (read, outcome) = store.read(&restore, from.opening, self.now, &mut self.rng);
                let is_short = read.len() < restore.blocks.len();
                self.report.num_outdated_reads += u64::from(is_short && from.opening != store.opening);
                let Some(shard) = &mut self.lanes[name.lane.0 as usize].shard else { return };
                for (block, hashes) in read {
                    shard.end_restore(block, hashes);
                }
                let transfers = Transfers { restores: vec![outcome], ..Transfers::default() };
                self.tell(Event::Transfers(name.lane, transfers));
            }
            Happening::Loaded(name, load) => self.end_load(name, &load),
            Happening::Visit if self.rng.once_in(4) => self.remove_node(),
            Happening::Visit => self.fetch(),
            Happening::Fetched(lane, writes) => self.end_fetch(lane, writes),
            Happening::Wake => {}
        }
    }

    /// Notes the openings of all stores for a lane, and returns those that were noted before.
    fn note_openings(&mut self, lane: LaneId) -> Vec<u64> {
        let openings = self.lanes.iter().map(|lane| lane.store.as_ref().map_or(0, |store| store.opening));
        let openings = openings.collect();
        std::mem::replace(&mut self.lane(lane).openings, openings)
    }

    fn lane(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.lanes[lane.0 as usize]
    }

    /// Returns a shard if it was not lost.
    fn shard(&self, name: ShardName) -> Option<&FakeShard> {
        let lane = &self.lanes[name.lane.0 as usize];
        lane.shard.as_ref().filter(|_| lane.num_shards == name.number)
    }

    fn any_lane(&mut self) -> LaneId {
        match self.lanes.len() as u64 {
            1 => LaneId::FIRST,
            num_lanes => LaneId(self.rng.range(0, num_lanes - 1) as u32),
        }
    }

    /// Stops the shards of lanes that are drained, as the launcher does.
    fn stop_drained(&mut self) {
        for lane in self.scheduler.lane_ids() {
            if self.scheduler.lane_stats(lane).is_drained && self.end_shard(lane) {
                self.report.num_stops += 1;
                self.tell(Event::ShardLost { lane, may_return: true });
            }
        }
    }

    fn lose_shard(&mut self, Outage { lane, for_ms, limits, .. }: Outage) {
        if !self.end_shard(lane) {
            return;
        }
        let may_return = for_ms < u64::MAX;
        if may_return {
            self.at(self.now.plus(for_ms), Happening::ShardBack(lane, limits));
        }
        self.report.num_losses += 1;
        self.longest_outage_ms = self.longest_outage_ms.max(for_ms);
        self.tell(Event::ShardLost { lane, may_return });
    }

    /// Ends a lane's shard. Returns false if it has none.
    fn end_shard(&mut self, lane: LaneId) -> bool {
        if self.lane(lane).shard.take().is_none() {
            return false;
        }
        self.kill_transfers(lane);
        let of_lane = self.lane(lane);
        of_lane.blocked = None;
        of_lane.in_flight.clear();
        true
    }

    /// Notes for how long connected lanes have nothing to do beside a waiting sequence.
    fn note_idle_lanes(&mut self) {
        let is_waiting = self.scheduler.stats().num_waiting > 0;
        for (lane, id) in self.lanes.iter_mut().zip(self.scheduler.lane_ids()) {
            let stats = self.scheduler.lane_stats(id);
            let is_idle = lane.shard.is_some() && !stats.is_draining && stats.num_running == 0;
            let since = lane.idle_since.filter(|_| is_idle).unwrap_or(self.now);
            self.report.longest_idle_ms = self.report.longest_idle_ms.max(self.now.since(since));
            lane.idle_since = (is_idle && is_waiting).then_some(since);
        }
    }

    fn remove_node(&mut self) {
        let lane = self.any_lane();
        let nodes =
            self.scheduler.kv(lane).map(|kv| kv.walk(NodeId(0), 1_000, |_| true).nodes).unwrap_or_default();
        if let Some(last) = (nodes.len() as u64).checked_sub(1) {
            let node = &nodes[self.rng.range(0, last) as usize];
            self.trace(&("remove", node.id));
            assert!(self.scheduler.nodes(lane).remove(node.id, node.key).is_some());
            self.scheduler.check_invariants();
        }
    }

    /// Begins to write the blocks that a prompt lacks to the store, as if the tier below had them.
    fn fetch(&mut self) {
        let last = self.scenario.arrivals.len() as u64 - 1;
        let arrival = &self.scenario.arrivals[self.rng.range(0, last) as usize];
        let (salt, tokens) = (&arrival.request.salt, &arrival.request.token_ids);
        let lane = self.any_lane();
        let of_lane = &mut self.lanes[lane.0 as usize];
        let (Some(store), Some(shard)) = (&mut of_lane.store, &of_lane.shard) else { return };
        let block_size = shard.limits.block_size as usize;
        let (mut key, mut prefix, mut records) = (salt.root_key(), Model::start(arrival.salt), Vec::new());
        for (depth, block) in tokens.chunks_exact(block_size).enumerate() {
            let parent = (depth > 0).then_some(key);
            key = key.extend(block);
            let hashes = block.iter().map(|&token| {
                prefix = Model::extend(prefix, token);
                prefix
            });
            records.push(Record { key, parent, depth: depth as u32, hashes: hashes.collect() });
        }
        let keys: Vec<BlockKey> = records.iter().map(|record| record.key).collect();
        let mut tier = self.scheduler.lower_tier(lane);
        let Some(coverage) = tier.coverage(salt, tokens, &keys).filter(|coverage| coverage.is_extensible)
        else {
            return;
        };
        records.drain(..coverage.num_blocks.min(keys.len()));
        let Some(first) = records.first() else { return };
        let slots = tier.reserve_adopted(salt, first.parent, records.len());
        let writes = slots.into_iter().zip(records).map(|(slot, record)| {
            store.begin_write(slot.0);
            Write { slot: slot.0, record, is_good: true }
        });
        let writes: Vec<Write> = writes.collect();
        let at = self.now.plus(self.rng.range(0, store.plan.max_delay_ms));
        self.trace(&writes);
        self.scheduler.check_invariants();
        self.at(at, Happening::Fetched(lane, writes));
    }

    fn end_fetch(&mut self, lane: LaneId, writes: Vec<Write>) {
        let Some(store) = &mut self.lanes[lane.0 as usize].store else { return };
        let mut is_written = true;
        for write in writes {
            let (slot, key, parent) = (write.slot, write.record.key, write.record.parent);
            // The router stops at the first block that cannot be written.
            let write = Write { is_good: is_written, ..write };
            is_written = store.end_write(write, self.now, &mut self.rng);
            self.scheduler.lower_tier(lane).adopt(SlotId(slot), key, parent, is_written);
        }
        self.scheduler.check_invariants();
    }

    fn end_fetches(&mut self, lane: LaneId) {
        let is_fetch = |happening: &Happening| matches!(happening, Happening::Fetched(of, _) if *of == lane);
        let pending = self.happenings.iter().filter(|(_, happening)| is_fetch(happening)).map(|(&at, _)| at);
        for at in pending.collect::<Vec<_>>() {
            if let Some(Happening::Fetched(_, writes)) = self.happenings.remove(&at) {
                self.end_fetch(lane, writes);
            }
        }
    }

    /// Schedules a grammar's answer. The delay depends only on the seed, the sequence and the time, so that it changes
    /// no other number of a seed.
    fn allow_soon(&mut self, id: SequenceId) {
        let delay_ms = mix(self.scenario.seed ^ mix(id.0 ^ self.now.0 << 16)) % 4;
        self.at(self.now.plus(delay_ms), Happening::Allow(id));
    }

    fn open_store(&mut self, lane: LaneId, block_size: u32) {
        let Some(plan) = self.scenario.store.filter(|plan| !plan.is_lost(self.now)) else { return };
        let store = &mut self.lane(lane).store;
        if store.as_ref().is_none_or(|store| store.block_size != block_size) {
            let mut new = FakeStore::new(plan, block_size);
            new.opening = store.as_ref().map_or(0, |replaced| replaced.opening);
            *store = Some(new);
        }
        let contents = store.as_mut().expect("just opened").contents(lane);
        self.tell(Event::StoreReady(lane, contents));
    }

    fn end_write(&mut self, lane: LaneId, write: Write) -> StoreOutcome {
        let slot = write.slot;
        let store = self.lanes[lane.0 as usize].store.as_mut().expect("a write has a store");
        StoreOutcome { slot, is_stored: store.end_write(write, self.now, &mut self.rng) }
    }

    /// Ends the writes of a lane's killed shard, each of which has happened or not.
    fn kill_transfers(&mut self, lane: LaneId) {
        let killed = ShardName { lane, number: self.lane(lane).num_shards };
        let lost: Vec<Happening> = self.happenings.values().cloned().collect();
        for happening in lost {
            if let Happening::Written(name, writes) = happening
                && name == killed
            {
                for write in writes {
                    if self.rng.once_in(2) {
                        self.end_write(lane, write);
                    }
                }
            }
        }
    }

    fn tell(&mut self, event: Event) {
        self.trace(&event);
        let mut updates = Vec::new();
        self.scheduler.handle(self.now, event, &mut updates);
        self.scheduler.check_invariants();
        self.take(updates);
    }

    /// Plans as the router does: all lanes, again as long as one had a plan.
    fn plan(&mut self) {
        let mut has_planned = true;
        while has_planned {
            has_planned = false;
            for lane in self.scheduler.lane_ids() {
                has_planned |= self.plan_lane(lane);
            }
            has_planned &= self.lanes.len() > 1;
        }
        if let Some(deadline) = self.scheduler.next_wakeup() {
            assert!(deadline > self.now, "expired sequences have ended");
            let mut until = self.happenings.range(..=(deadline, u64::MAX));
            if !until.any(|(_, happening)| matches!(happening, Happening::Wake)) {
                self.at(deadline, Happening::Wake);
            }
        }
    }

    /// Plans until the scheduler has no further plan for a lane. Returns true if it had one.
    fn plan_lane(&mut self, lane: LaneId) -> bool {
        let mut has_planned = false;
        loop {
            let mut updates = Vec::new();
            let plan = self.scheduler.plan(lane, self.now, &mut updates);
            let has_updates = !updates.is_empty();
            if plan.is_some() || has_updates || self.lanes.len() == 1 {
                self.scheduler.check_invariants();
            }
            self.take(updates);
            self.send_late_masks(lane);
            match plan {
                Some(plan) => {
                    has_planned = true;
                    self.execute(lane, &plan);
                }
                None if has_updates => {}
                None => return has_planned,
            }
        }
    }

    fn execute(&mut self, id: LaneId, plan: &StepPlan) {
        self.trace(&(id, plan));
        let lane = &mut self.lanes[id.0 as usize];
        let shard = lane.shard.as_mut().expect("plans are for a shard that is there");
        assert!(lane.blocked.is_none(), "no step is planned behind one that awaits masks");
        let result = shard.execute(plan, &self.known, &mut self.rng);
        let delay_ms = result.device_time_us.div_ceil(1_000) + self.rng.range(0, self.scenario.max_delay_ms);
        let from = lane.free_at.max(self.now);
        lane.free_at = self.scenario.end_of(id, from, from.plus(delay_ms));
        let writes = std::mem::take(&mut shard.writes);
        let name = ShardName { lane: id, number: lane.num_shards };
        let crashes = |poison: Poison| match poison {
            Poison::Position { request, position } => shard.computes(plan, request, position),
            Poison::Pair(one, other) => shard.has(plan, one) && shard.has(plan, other),
        };
        let (crashes, awaits_masks) = (self.scenario.poison.is_some_and(crashes), shard.num_awaiting() > 0);
        lane.free_at = lane.free_at.plus(if crashes { self.scenario.hang_ms } else { 0 });
        let (seeds, free_at) = (shard.seeds(plan), lane.free_at);
        lane.in_flight.push_back(seeds.clone());
        let hangs = self.scenario.hang_ms > 0 && self.scenario.poison.is_some();
        let never_stalls =
            |other: usize| !hangs && self.scenario.stalls.iter().all(|stall| stall.lane.0 as usize != other);
        let others = self
            .lanes
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != id.0 as usize && never_stalls(*other));
        for (other, lane) in others {
            let is_here = |seed: &&u64| lane.in_flight.iter().flatten().any(|known| known == *seed);
            assert_eq!(seeds.iter().find(is_here), None, "computed on lanes {} and {other}", id.0);
        }
        if crashes {
            self.at(free_at, Happening::Crash(name));
        }
        if awaits_masks {
            self.lane(id).blocked = Some(result);
        } else {
            self.at(free_at, Happening::Result(name, result));
        }
        for load in plan.adapter_loads.iter().filter(|load| !load.path.is_empty()) {
            let longest_ms = self.scenario.load_ms.unwrap_or(0);
            let at = self.now.plus(self.adapter_rng.range(0, longest_ms));
            self.at(self.scenario.end_of(id, self.now, at), Happening::Loaded(name, load.clone()));
        }
        let lane = &mut self.lanes[id.0 as usize];
        let Some(store) = &mut lane.store else {
            assert!(
                writes.is_empty() && plan.restores.is_empty() && plan.discards.is_empty(),
                "there is no store"
            );
            return;
        };
        plan.discards.iter().for_each(|&slot| store.discard(slot));
        writes.iter().for_each(|write| store.begin_write(write.slot));
        let times = store.plan;
        let openings = self.note_openings(id);
        for restore in &plan.restores {
            let shard = self.lane(id).shard.as_mut().expect("plans are for a shard that is there");
            restore.blocks.iter().for_each(|block| shard.begin_restore(block));
            let at = self.scenario.end_of(id, self.now, self.now.plus(times.read_ms(&mut self.rng)));
            let lane = restore.store_folder.parse().unwrap_or(id.0 as usize);
            let own = self.lanes[lane].store.as_ref().expect("only stores that are there are read").opening;
            let opening = if lane == id.0 as usize { own } else { openings[lane] };
            self.at(at, Happening::Read(name, restore.clone(), ReadFrom { lane, opening }));
        }
        if !writes.is_empty() {
            let at = free_at.plus(self.rng.range(0, times.max_delay_ms));
            self.at(at, Happening::Written(name, writes));
        }
    }

    /// Sends late masks to the lane's step that awaits them.
    fn send_late_masks(&mut self, id: LaneId) {
        for late in self.scheduler.take_late_masks(id) {
            self.trace(&(id, &late));
            let lane = &mut self.lanes[id.0 as usize];
            let shard = lane.shard.as_mut().expect("masks are for a shard that is there");
            let result = shard.take_late_mask(&late, &mut self.rng);
            let is_last = shard.num_awaiting() == 0;
            if let Some(blocked) = &mut lane.blocked {
                blocked.sequences.extend(result);
            } else {
                assert!(result.is_none(), "a step with a chunk that samples waits for it");
            }
            if is_last && let Some(result) = lane.blocked.take() {
                let name = ShardName { lane: id, number: lane.num_shards };
                let from = lane.free_at.max(self.now);
                lane.free_at = self.scenario.end_of(id, from, from);
                let free_at = lane.free_at;
                self.at(free_at, Happening::Result(name, result));
            }
        }
    }

    fn take(&mut self, updates: Vec<Update>) {
        for update in updates {
            self.trace(&update);
            match update {
                Update::Started { id, cached_tokens, queued_ms, restored } => {
                    assert!(restored.num_tokens <= cached_tokens, "restored tokens are cached");
                    self.check_open(id);
                    assert_eq!(queued_ms, self.now.since(self.submitted[&id]));
                    assert!(cached_tokens < self.arrivals[&id].request.token_ids.len() as u32);
                    assert!(self.report.started_at.insert(id, self.now).is_none(), "started once");
                    self.report.cached_tokens.insert(id, cached_tokens);
                }
                Update::Pinned { id, pinned } => {
                    self.check_open(id);
                    let request = &self.arrivals[&id].request;
                    assert!(request.retention.pinned_ms.is_some(), "only requested pins are reported");
                    let num_asked = request.retention.num_tokens.unwrap_or(u32::MAX);
                    assert!(pinned.num_tokens <= num_asked.min(request.token_ids.len() as u32));
                    let has_none = self.report.outputs[&id].is_empty();
                    assert!(has_none || request.constrained, "before the first token that is sampled");
                    assert!(self.pinned.insert(id), "once");
                }
                Update::Scored { id, scores } => {
                    self.check_open(id);
                    assert!(!scores.is_empty(), "an update has scores");
                    self.scores.entry(id).or_default().extend(scores);
                }
                Update::Pooled { id, vector } => {
                    self.check_open(id);
                    let arrival = &self.arrivals[&id];
                    let prompt = arrival.request.token_ids.iter();
                    let hash =
                        prompt.fold(Model::start(arrival.salt), |hash, &token| Model::extend(hash, token));
                    assert!(arrival.request.pooling.is_some() && self.report.started_at.contains_key(&id));
                    assert_eq!(vector, Model::vector(hash), "the vector of sequence {}", id.0);
                    assert!(self.pooled.insert(id), "once");
                }
                Update::Drafted { id, num_drafts, num_accepted } => {
                    self.check_open(id);
                    assert!(num_accepted <= num_drafts && num_drafts > 0);
                }
                Update::Token { id, token } => {
                    self.check_open(id);
                    self.check_scores(id);
                    let request = &self.arrivals[&id].request;
                    // Forced tokens may come before the prompt is computed.
                    let is_told = request.retention.pinned_ms.is_none() || self.pinned.contains(&id);
                    assert!(is_told || request.constrained, "the outcome of the pin is reported first");
                    assert!(self.report.started_at.contains_key(&id), "only started sequences have tokens");
                    let output = self.report.outputs.get_mut(&id).expect("submitted");
                    output.push(token.token_id);
                    self.report.first_token_at.entry(id).or_insert(self.now);
                    if let Some(last) = self.last_token_at.insert(id, self.now) {
                        self.report.longest_pause_ms = self.report.longest_pause_ms.max(self.now.since(last));
                    }
                    self.react(id);
                }
                Update::Awaits { id, token_ids, drafts } => {
                    self.check_open(id);
                    assert!(!token_ids.is_empty() && self.report.outputs[&id].ends_with(&token_ids));
                    self.asked_drafts.insert(id, drafts);
                    self.allow_soon(id);
                }
                Update::Ended { id, reason, usage } => {
                    self.check_open(id);
                    let output = &self.report.outputs[&id];
                    assert_eq!(usage.prompt_tokens as usize, self.arrivals[&id].request.token_ids.len());
                    assert_eq!(usage.output_tokens as usize, output.len());
                    assert_eq!(usage.cached_tokens, self.report.cached_tokens.get(&id).copied().unwrap_or(0));
                    self.check_text(id, &reason);
                    self.check_lost(id, &reason);
                    if matches!(reason, EndReason::EndToken | EndReason::Length) {
                        self.check_scores(id);
                    }
                    self.report.ends.insert(id, reason);
                    self.report.ended_ats.insert(id, self.now);
                }
                Update::Rejected { id, reason, retry_after_ms } => {
                    self.check_open(id);
                    assert!(!self.report.started_at.contains_key(&id), "a started sequence is not rejected");
                    let is_overload = matches!(
                        reason,
                        RejectReason::QueueFull { .. }
                            | RejectReason::QueueShared { .. }
                            | RejectReason::DeadlineUnreachable { .. }
                            | RejectReason::ShardAway
                    );
                    assert_eq!(retry_after_ms.is_some_and(|ms| ms > 0), is_overload);
                    let has_shard = self.lanes.iter().any(|lane| lane.shard.is_some());
                    assert!(reason != RejectReason::ShardAway || !has_shard, "all lanes are away");
                    self.check_adapter_refusal(id, &reason);
                    self.report.rejections.insert(id, reason);
                    self.report.ended_ats.insert(id, self.now);
                }
            }
        }
    }

    /// Lets a client act that waits for this number of tokens.
    fn react(&mut self, id: SequenceId) {
        let num_tokens = self.report.outputs[&id].len() as u32;
        let request = &self.arrivals[&id].request;
        // Forced tokens, and those of right drafts, are reported together.
        let may_be_several = request.constrained || request.drafter.is_some();
        match self.arrivals[&id].client {
            Client::StopsAfterTokens(count) if count == num_tokens && may_be_several => {
                self.at(self.now, Happening::Finish(id));
            }
            Client::StopsAfterTokens(count) if count == num_tokens => {
                // The sequence may have ended with this very token, so the scheduler may not know it any more.
                self.tell(Event::Finish(id));
            }
            Client::AbortsAfterTokens(count) if count == num_tokens => {
                self.at(self.now, Happening::Leave(id));
            }
            _ => {}
        }
    }

    #[allow(clippy::print_stdout)]
    fn trace(&mut self, what: &impl std::fmt::Debug) {
        let line = format!("{:>6} {what:?}", self.now.0);
        if self.options.is_verbose {
            println!("{line}");
        }
        for byte in line.bytes() {
            self.report.trace_hash =
                (self.report.trace_hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.report.trace_hash = mix(self.report.trace_hash);
    }
}
