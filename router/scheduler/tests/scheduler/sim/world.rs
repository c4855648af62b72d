//! The run itself: the events on the clock, and the scheduler that handles them.

mod adapters;
mod checks;
mod steps;
mod stores;
mod updates;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use trunkline_scheduler::{
    AdapterLoad, Consumption, Event, LaneId, Millis, NodeId, Restore, Scheduler, SequenceId, ShardLimits,
    Stats, StepResult, TokenScore, Transfers,
};

use super::model::{Known, Model};
use super::rng::{Rng, mix};
use super::scenario::{Arrival, Client, Drain, Outage, Poison, Scenario};
use super::shard::FakeShard;
use super::store::{FakeStore, Write};
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

    /// Schedules a grammar's answer. The delay depends only on the seed, the sequence and the time, so that it changes
    /// no other number of a seed.
    fn allow_soon(&mut self, id: SequenceId) {
        let delay_ms = mix(self.scenario.seed ^ mix(id.0 ^ self.now.0 << 16)) % 4;
        self.at(self.now.plus(delay_ms), Happening::Allow(id));
    }

    fn tell(&mut self, event: Event) {
        self.trace(&event);
        let mut updates = Vec::new();
        self.scheduler.handle(self.now, event, &mut updates);
        self.scheduler.check_invariants();
        self.take(updates);
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
