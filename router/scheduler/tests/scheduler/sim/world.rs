//! The run itself: the events on the clock, the scheduler that handles them, and the execution of its plans.

mod checks;

use std::collections::{BTreeMap, BTreeSet};

use trunkline_scheduler::{
    BlockKey, Consumption, EndReason, Event, LaneId, Millis, NodeId, RejectReason, Restore, Scheduler,
    SequenceId, ShardLimits, SlotId, Stats, StepPlan, StepResult, StoreOutcome, TokenScore, Transfers,
    Update,
};

use super::model::{Known, Model};
use super::rng::{Rng, mix};
use super::scenario::{Arrival, Client, Outage, Poison, Scenario};
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
    /// A request crashes the n-th shard.
    Crash {
        shard: u64,
    },
    ShardBack(ShardLimits),
    /// The n-th shard answers a step.
    Result {
        shard: u64,
        result: StepResult,
    },
    /// The n-th shard has written blocks to the store.
    Written {
        shard: u64,
        writes: Vec<Write>,
    },
    /// The n-th shard has read blocks from the store.
    Read {
        shard: u64,
        restore: Restore,
    },
    /// A user removes a node, or a prompt lacks blocks that the tier below has.
    Visit,
    /// Blocks of the tier below are in the store, in reserved slots.
    Fetched(Vec<Write>),
    Wake,
}

pub(super) struct World<'a> {
    scenario: &'a Scenario,
    options: Options,
    rng: Rng,
    now: Millis,
    next_happening: u64,
    happenings: BTreeMap<(Millis, u64), Happening>,
    scheduler: Scheduler,
    shard: Option<FakeShard>,
    store: Option<FakeStore>,
    num_shards: u64,
    longest_outage_ms: u64,
    shard_free_at: Millis,
    /// The result of the step that awaits masks.
    blocked: Option<StepResult>,
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
            shard: None,
            store: None,
            num_shards: 0,
            longest_outage_ms: 0,
            shard_free_at: Millis(0),
            blocked: None,
            known: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            submitted: BTreeMap::new(),
            pinned: BTreeSet::new(),
            pooled: BTreeSet::new(),
            scores: BTreeMap::new(),
            asked_drafts: BTreeMap::new(),
            consumption: BTreeMap::new(),
            device_time_us: 0,
            report: Report {
                trace_hash: 0,
                num_events: 0,
                num_losses: 0,
                ended_at: Millis(0),
                stats: Stats::default(),
                ends: BTreeMap::new(),
                outputs: BTreeMap::new(),
                rejections: BTreeMap::new(),
                cached_tokens: BTreeMap::new(),
                started_at: BTreeMap::new(),
                first_token_at: BTreeMap::new(),
            },
        };
        world.at(Millis(0), Happening::ShardBack(scenario.limits));
        for (index, arrival) in scenario.arrivals.iter().enumerate() {
            world.at(arrival.at, Happening::Arrive(index));
            world.arrivals.insert(arrival.request.id, arrival);
            let request = &arrival.request;
            world.known.insert(request.sampling.seed, Known::of(request, arrival.salt));
        }
        for outage in &scenario.outages {
            world.at(outage.at, Happening::ShardLost(*outage));
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
        let num_shards = self.scenario.outages.len() as u64 + 1 + num_crashes;
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
            Blow::LoseShard if self.shard.is_some() => {
                let limits = self.scenario.limits;
                self.happen(Happening::ShardLost(Outage { at: self.now, for_ms: 3, limits }));
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
            Happening::ShardLost(outage) => {
                if self.shard.take().is_some() {
                    self.kill_transfers();
                    self.blocked = None;
                    self.at(self.now.plus(outage.for_ms), Happening::ShardBack(outage.limits));
                    self.report.num_losses += 1;
                    self.longest_outage_ms = self.longest_outage_ms.max(outage.for_ms);
                    self.tell(Event::ShardLost { lane: LaneId::FIRST, may_return: true });
                }
            }
            Happening::Crash { shard } => {
                if let Some(limits) = self.shard.as_ref().map(|shard| shard.limits)
                    && shard == self.num_shards
                {
                    self.happen(Happening::ShardLost(Outage { at: self.now, for_ms: 2, limits }));
                }
            }
            Happening::ShardBack(limits) => {
                // The link waits until nobody writes blocks of the tier below.
                self.end_fetches();
                let beside = self.scenario.config.max_prefill_tokens_beside_decodes;
                self.shard = Some(FakeShard::new(limits, self.scenario.faults, beside));
                self.num_shards += 1;
                self.shard_free_at = self.now;
                self.tell(Event::ShardReady(LaneId::FIRST, limits));
                self.open_store(limits.block_size);
            }
            Happening::Result { shard, result } => {
                // The router drops results of an earlier shard, and the scheduler those that come after a loss.
                if shard != self.num_shards || self.shard.is_none() && self.scenario.twice == 0 {
                    return;
                }
                let is_twice = self.rng.once_in(self.scenario.twice);
                if self.shard.is_some() {
                    self.device_time_us += result.device_time_us;
                }
                self.tell(Event::StepResult(LaneId::FIRST, result.clone()));
                if is_twice {
                    self.tell(Event::StepResult(LaneId::FIRST, result));
                }
            }
            Happening::Written { shard, writes } => {
                if shard == self.num_shards && self.shard.is_some() {
                    let stores = writes.into_iter().map(|write| self.end_write(write)).collect();
                    self.tell(Event::Transfers(LaneId::FIRST, Transfers { stores, restores: Vec::new() }));
                }
            }
            Happening::Read { shard, restore } => {
                if shard != self.num_shards {
                    return;
                }
                let (Some(store), Some(shard)) = (&mut self.store, &mut self.shard) else { return };
                let (read, outcome) = store.read(&restore, self.now, &mut self.rng);
                for (block, hashes) in read {
                    shard.end_restore(block, hashes);
                }
                self.tell(Event::Transfers(
                    LaneId::FIRST,
                    Transfers { stores: Vec::new(), restores: vec![outcome] },
                ));
            }
            Happening::Visit if self.rng.once_in(4) => self.remove_node(),
            Happening::Visit => self.fetch(),
            Happening::Fetched(writes) => self.end_fetch(writes),
            Happening::Wake => {}
        }
    }

    fn remove_node(&mut self) {
        let nodes = self
            .scheduler
            .kv(LaneId::FIRST)
            .map(|kv| kv.walk(NodeId(0), 1_000, |_| true).nodes)
            .unwrap_or_default();
        if let Some(last) = (nodes.len() as u64).checked_sub(1) {
            let node = &nodes[self.rng.range(0, last) as usize];
            self.trace(&("remove", node.id));
            assert!(self.scheduler.nodes(LaneId::FIRST).remove(node.id, node.key).is_some());
            self.scheduler.check_invariants();
        }
    }

    /// Begins to write the blocks that a prompt lacks to the store, as if the tier below had them.
    fn fetch(&mut self) {
        let last = self.scenario.arrivals.len() as u64 - 1;
        let arrival = &self.scenario.arrivals[self.rng.range(0, last) as usize];
        let (salt, tokens) = (&arrival.request.salt, &arrival.request.token_ids);
        let (Some(store), Some(shard)) = (&mut self.store, &self.shard) else { return };
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
        let mut tier = self.scheduler.lower_tier(LaneId::FIRST);
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
        self.at(at, Happening::Fetched(writes));
    }

    fn end_fetch(&mut self, writes: Vec<Write>) {
        let Some(store) = &mut self.store else { return };
        let mut is_written = true;
        for write in writes {
            let (slot, key, parent) = (write.slot, write.record.key, write.record.parent);
            // The router stops at the first block that cannot be written.
            let write = Write { is_good: is_written, ..write };
            is_written = store.end_write(write, self.now, &mut self.rng);
            self.scheduler.lower_tier(LaneId::FIRST).adopt(SlotId(slot), key, parent, is_written);
        }
        self.scheduler.check_invariants();
    }

    fn end_fetches(&mut self) {
        let is_fetch = |happening: &Happening| matches!(happening, Happening::Fetched(_));
        let pending = self.happenings.iter().filter(|(_, happening)| is_fetch(happening)).map(|(&at, _)| at);
        for at in pending.collect::<Vec<_>>() {
            if let Some(Happening::Fetched(writes)) = self.happenings.remove(&at) {
                self.end_fetch(writes);
            }
        }
    }

    /// Schedules a grammar's answer. The delay depends only on the seed, the sequence and the time, so that it changes
    /// no other number of a seed.
    fn allow_soon(&mut self, id: SequenceId) {
        let delay_ms = mix(self.scenario.seed ^ mix(id.0 ^ self.now.0 << 16)) % 4;
        self.at(self.now.plus(delay_ms), Happening::Allow(id));
    }

    fn open_store(&mut self, block_size: u32) {
        let Some(plan) = self.scenario.store.filter(|plan| !plan.is_lost(self.now)) else { return };
        if self.store.as_ref().is_none_or(|store| store.block_size != block_size) {
            self.store = Some(FakeStore::new(plan, block_size));
        }
        let contents = self.store.as_mut().expect("just opened").contents();
        self.tell(Event::StoreReady(LaneId::FIRST, contents));
    }

    fn end_write(&mut self, write: Write) -> StoreOutcome {
        let slot = write.slot;
        let store = self.store.as_mut().expect("a write has a store");
        StoreOutcome { slot, is_stored: store.end_write(write, self.now, &mut self.rng) }
    }

    /// Ends the writes of a killed shard, each of which has happened or not.
    fn kill_transfers(&mut self) {
        let lost: Vec<Happening> = self.happenings.values().cloned().collect();
        for happening in lost {
            if let Happening::Written { shard, writes } = happening
                && shard == self.num_shards
            {
                for write in writes {
                    if self.rng.once_in(2) {
                        self.end_write(write);
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

    fn plan(&mut self) {
        loop {
            let mut updates = Vec::new();
            let plan = self.scheduler.plan(LaneId::FIRST, self.now, &mut updates);
            self.scheduler.check_invariants();
            let has_updates = !updates.is_empty();
            self.take(updates);
            self.send_late_masks();
            match plan {
                Some(plan) => self.execute(&plan),
                None if has_updates => {}
                None => break,
            }
        }
        if let Some(deadline) = self.scheduler.next_wakeup() {
            assert!(deadline > self.now, "expired sequences have ended");
            let mut until = self.happenings.range(..=(deadline, u64::MAX));
            if !until.any(|(_, happening)| matches!(happening, Happening::Wake)) {
                self.at(deadline, Happening::Wake);
            }
        }
    }

    fn execute(&mut self, plan: &StepPlan) {
        self.trace(plan);
        let shard = self.shard.as_mut().expect("plans are for a shard that is there");
        assert!(self.blocked.is_none(), "no step is planned behind one that awaits masks");
        let result = shard.execute(plan, &self.known, &mut self.rng);
        let delay_ms = result.device_time_us.div_ceil(1_000) + self.rng.range(0, self.scenario.max_delay_ms);
        self.shard_free_at = self.shard_free_at.max(self.now).plus(delay_ms);
        let writes = std::mem::take(&mut shard.writes);
        let number = self.num_shards;
        let crashes = |poison: Poison| match poison {
            Poison::Position { request, position } => shard.computes(plan, request, position),
            Poison::Pair(one, other) => shard.has(plan, one) && shard.has(plan, other),
        };
        let (crashes, awaits_masks) = (self.scenario.poison.is_some_and(crashes), shard.num_awaiting() > 0);
        if crashes {
            self.at(self.shard_free_at, Happening::Crash { shard: number });
        }
        if awaits_masks {
            self.blocked = Some(result);
        } else {
            self.at(self.shard_free_at, Happening::Result { shard: number, result });
        }
        let Some(store) = &mut self.store else {
            assert!(
                writes.is_empty() && plan.restores.is_empty() && plan.discards.is_empty(),
                "there is no store"
            );
            return;
        };
        plan.discards.iter().for_each(|&slot| store.discard(slot));
        writes.iter().for_each(|write| store.begin_write(write.slot));
        let times = store.plan;
        for restore in &plan.restores {
            let shard = self.shard.as_mut().expect("plans are for a shard that is there");
            restore.blocks.iter().for_each(|block| shard.begin_restore(block));
            let at = self.now.plus(times.read_ms(&mut self.rng));
            self.at(at, Happening::Read { shard: number, restore: restore.clone() });
        }
        if !writes.is_empty() {
            let at = self.shard_free_at.plus(self.rng.range(0, times.max_delay_ms));
            self.at(at, Happening::Written { shard: number, writes });
        }
    }

    /// Sends late masks to the step that awaits them.
    fn send_late_masks(&mut self) {
        for late in self.scheduler.take_late_masks(LaneId::FIRST) {
            self.trace(&late);
            let shard = self.shard.as_mut().expect("masks are for a shard that is there");
            let result = shard.take_late_mask(&late, &mut self.rng);
            let is_last = shard.num_awaiting() == 0;
            if let Some(blocked) = &mut self.blocked {
                blocked.sequences.extend(result);
            } else {
                assert!(result.is_none(), "a step with a chunk that samples waits for it");
            }
            if is_last && let Some(result) = self.blocked.take() {
                let shard = self.num_shards;
                self.shard_free_at = self.shard_free_at.max(self.now);
                self.at(self.shard_free_at, Happening::Result { shard, result });
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
                    if matches!(reason, EndReason::EndToken | EndReason::Length) {
                        self.check_scores(id);
                    }
                    self.report.ends.insert(id, reason);
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
                    self.report.rejections.insert(id, reason);
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
