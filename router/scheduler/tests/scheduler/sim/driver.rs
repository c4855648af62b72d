//! Drives a scheduler and the fake shard step by step.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use trunkline_scheduler::{
    AdapterLoad, AdapterOutcome, EndReason, Event, LaneId, Millis, Outcome, RejectReason, Restore,
    RestoreOutcome, Salt, SampledToken, Scheduler, SchedulerConfig, SequenceRequest, SequenceResult,
    ShardLimits, StepPlan, StepResult, StoreOutcome, Transfers, Update,
};

use super::model::Known;
use super::rng::Rng;
use super::shard::{FakeShard, ShardFaults};
use super::store::{FakeStore, StorePlan};

/// A scheduler and a shard, or several. The test advances the time and decides when results arrive.
pub struct Driver {
    pub scheduler: Scheduler,
    pub shard: FakeShard,
    pub known: BTreeMap<u64, Known>,
    pub results: VecDeque<StepResult>,
    /// The shards of the other lanes, with their results.
    pub more_lanes: Vec<(FakeShard, VecDeque<StepResult>)>,
    pub updates: Vec<Update>,
    pub now: Millis,
    pub store: Option<FakeStore>,
    /// The restores that are in flight.
    pub restores: Vec<Restore>,
    /// The loads of adapters that are in flight.
    pub loads: Vec<AdapterLoad>,
}

pub const LIMITS: ShardLimits = ShardLimits {
    block_size: 4,
    num_blocks: 64,
    max_step_tokens: 64,
    max_step_sequences: 8,
    vocab_size: 50,
    vector_size: 0,
    windows: None,
    numerics: 0,
    max_draft_tokens: 0,
    max_own_drafts: 0,
    num_adapter_slots: 0,
    adapter_bytes: 0,
};

/// Returns the result of a chunk that samples `token_id`.
pub fn sampled(sequence_id: u64, token_id: u32) -> SequenceResult {
    let outcome = Some(Outcome::Token(SampledToken { token_id, ..SampledToken::default() }));
    SequenceResult { sequence_id, outcome, ..SequenceResult::default() }
}

/// Returns the answer of a shard that samples `token_id` for each chunk that samples.
pub fn answer(plan: &StepPlan, token_id: u32) -> StepResult {
    let chunks = plan.chunks.iter().filter(|chunk| chunk.sample);
    let sequences = chunks.map(|chunk| sampled(chunk.sequence_id, token_id)).collect();
    StepResult { step_id: plan.step_id, sequences, device_time_us: 1_000, draft_time_us: 0 }
}

fn hash_of(salt: &Salt) -> u64 {
    let mut hasher = DefaultHasher::new();
    salt.hash(&mut hasher);
    hasher.finish()
}

impl Driver {
    pub fn new(config: SchedulerConfig, limits: ShardLimits) -> Self {
        let beside = config.max_prefill_tokens_beside_decodes;
        let mut scheduler = Scheduler::new(config);
        scheduler.handle(Millis(0), Event::ShardReady(LaneId::FIRST, limits), &mut Vec::new());
        Self {
            scheduler,
            shard: FakeShard::new(limits, ShardFaults::default(), beside),
            known: BTreeMap::new(),
            results: VecDeque::new(),
            more_lanes: Vec::new(),
            updates: Vec::new(),
            now: Millis(0),
            store: None,
            restores: Vec::new(),
            loads: Vec::new(),
        }
    }

    /// Connects shards like the first one on the other lanes.
    pub fn with_all_lanes(mut self) -> Self {
        let limits = self.shard.limits;
        for lane in self.scheduler.lane_ids().skip(1) {
            self.more_lanes.push((FakeShard::new(limits, ShardFaults::default(), u32::MAX), VecDeque::new()));
            self.handle(Event::ShardReady(lane, limits));
        }
        self
    }

    /// Makes and executes a plan of a lane without a store.
    pub fn plan_on(&mut self, lane: LaneId) -> Option<StepPlan> {
        let Some(index) = lane.0.checked_sub(1) else { return self.plan() };
        let plan = self.scheduler.plan(lane, self.now, &mut self.updates)?;
        self.scheduler.check_invariants();
        let (shard, results) = &mut self.more_lanes[index as usize];
        results.push_back(shard.execute(&plan, &self.known, &mut Rng::new(0)));
        Some(plan)
    }

    /// Takes the lane's next result. Returns false if nothing is in flight.
    pub fn acknowledge_on(&mut self, lane: LaneId) -> bool {
        let results = match lane.0.checked_sub(1) {
            None => &mut self.results,
            Some(index) => &mut self.more_lanes[index as usize].1,
        };
        let Some(result) = results.pop_front() else { return false };
        self.handle(Event::StepResult(lane, result));
        true
    }

    /// Puts a store below the shard.
    pub fn with_store(mut self, num_slots: u32) -> Self {
        let plan = StorePlan { num_slots, ..StorePlan::default() };
        let mut store = FakeStore::new(plan, self.shard.limits.block_size);
        self.handle(Event::StoreReady(LaneId::FIRST, store.contents(LaneId::FIRST)));
        self.store = Some(store);
        self
    }

    /// Kills the shard and connects another one to the same store.
    pub fn restart_shard(&mut self) {
        let (limits, beside) = (self.shard.limits, u32::MAX);
        self.shard = FakeShard::new(limits, ShardFaults::default(), beside);
        self.results.clear();
        self.restores.clear();
        self.loads.clear();
        self.handle(Event::ShardLost { lane: LaneId::FIRST, may_return: true });
        self.handle(Event::ShardReady(LaneId::FIRST, limits));
        if let Some(mut store) = self.store.take() {
            self.handle(Event::StoreReady(LaneId::FIRST, store.contents(LaneId::FIRST)));
            self.store = Some(store);
        }
    }

    /// Ends all restores in flight, each with at most `num_blocks` good blocks.
    pub fn end_restores(&mut self, num_blocks: usize) {
        self.end_restores_after(num_blocks, 100);
    }

    /// Like [`Driver::end_restores`], after `time_us` microseconds.
    pub fn end_restores_after(&mut self, num_blocks: usize, time_us: u64) {
        for mut restore in std::mem::take(&mut self.restores) {
            let whole = restore.blocks.len();
            restore.blocks.truncate(num_blocks);
            let (read, outcome) = {
                let store = self.store.as_mut().expect("a store");
                store.read(&restore, store.opening, self.now, &mut Rng::new(0))
            };
            assert!(num_blocks >= whole || read.len() == num_blocks);
            for (block, hashes) in read {
                self.shard.end_restore(block, hashes);
            }
            let outcome = RestoreOutcome { time_us, ..outcome };
            self.handle(Event::Transfers(
                LaneId::FIRST,
                Transfers { restores: vec![outcome], ..Transfers::default() },
            ));
        }
    }

    /// Ends all loads of adapters in flight, with this problem or with none. Returns their slots.
    pub fn end_loads(&mut self, problem: &str) -> Vec<u32> {
        let loads = std::mem::take(&mut self.loads);
        for load in &loads {
            self.shard.end_load(load.slot, problem.is_empty());
            let adapters = vec![AdapterOutcome { slot: load.slot, problem: problem.to_owned() }];
            self.handle(Event::Transfers(LaneId::FIRST, Transfers { adapters, ..Transfers::default() }));
        }
        loads.iter().map(|load| load.slot).collect()
    }

    /// Ends the loads of a lane's plan, which have no problems.
    pub fn load_at_once(&mut self, lane: LaneId, plan: &StepPlan) {
        let shard = match lane.0.checked_sub(1) {
            None => &mut self.shard,
            Some(index) => &mut self.more_lanes[index as usize].0,
        };
        self.loads.clear();
        let mut transfers = Transfers::default();
        for load in &plan.adapter_loads {
            shard.end_load(load.slot, true);
            transfers.adapters.push(AdapterOutcome { slot: load.slot, problem: String::new() });
        }
        self.handle(Event::Transfers(lane, transfers));
    }

    pub fn handle(&mut self, event: Event) {
        self.scheduler.handle(self.now, event, &mut self.updates);
        self.scheduler.check_invariants();
    }

    pub fn submit(&mut self, request: SequenceRequest) {
        // Requests with another salt have other texts.
        let salt = if request.salt == Salt::default() { 0 } else { hash_of(&request.salt) };
        self.known.insert(request.sampling.seed, Known::of(&request, salt));
        self.handle(Event::Submit(Box::new(request)));
    }

    /// Makes and executes one plan. Its result waits for `acknowledge`.
    pub fn plan(&mut self) -> Option<StepPlan> {
        let plan = self.scheduler.plan(LaneId::FIRST, self.now, &mut self.updates)?;
        self.scheduler.check_invariants();
        self.results.push_back(self.shard.execute(&plan, &self.known, &mut Rng::new(0)));
        for restore in &plan.restores {
            restore.blocks.iter().for_each(|block| self.shard.begin_restore(block));
        }
        if let Some(store) = &mut self.store {
            plan.discards.iter().for_each(|&slot| store.discard(slot));
        }
        self.restores.extend(plan.restores.clone());
        self.loads.extend(plan.adapter_loads.iter().filter(|load| !load.path.is_empty()).cloned());
        Some(plan)
    }

    pub fn acknowledge(&mut self) {
        let result = self.results.pop_front().expect("a plan is in flight");
        self.handle(Event::StepResult(LaneId::FIRST, result));
        let writes = std::mem::take(&mut self.shard.writes);
        if let Some(store) = &mut self.store {
            let outcomes = writes.into_iter().map(|write| {
                let slot = write.slot;
                store.begin_write(slot);
                StoreOutcome { slot, is_stored: store.end_write(write, self.now, &mut Rng::new(0)) }
            });
            let transfers = Transfers { stores: outcomes.collect(), ..Transfers::default() };
            self.handle(Event::Transfers(LaneId::FIRST, transfers));
        }
    }

    /// Makes a step of one millisecond without run-ahead.
    pub fn step(&mut self) -> Option<StepPlan> {
        let plan = self.plan();
        self.now = self.now.plus(1);
        if plan.is_some() {
            self.acknowledge();
        }
        plan
    }

    /// Makes steps until nothing is left to do, and returns all plans.
    pub fn run(&mut self) -> Vec<StepPlan> {
        let mut plans = Vec::new();
        while let Some(plan) = self.step() {
            plans.push(plan);
            assert!(plans.len() < 10_000, "it ends");
        }
        plans
    }

    pub fn ended(&self, id: u64) -> Option<&EndReason> {
        self.updates.iter().find_map(|update| match update {
            Update::Ended { id: ended, reason, .. } if ended.0 == id => Some(reason),
            _ => None,
        })
    }

    pub fn started(&self, id: u64) -> Option<(u32, u64)> {
        self.updates.iter().find_map(|update| match update {
            Update::Started { id: started, cached_tokens, queued_ms, .. } if started.0 == id => {
                Some((*cached_tokens, *queued_ms))
            }
            _ => None,
        })
    }

    pub fn output(&self, id: u64) -> Vec<u32> {
        let tokens = self.updates.iter().filter_map(|update| match update {
            Update::Token { id: of, token } if of.0 == id => Some(token.token_id),
            _ => None,
        });
        tokens.collect()
    }

    pub fn rejection(&self, id: u64) -> Option<(&RejectReason, Option<u64>)> {
        self.updates.iter().find_map(|update| match update {
            Update::Rejected { id: rejected, reason, retry_after_ms } if rejected.0 == id => {
                Some((reason, *retry_after_ms))
            }
            _ => None,
        })
    }
}
