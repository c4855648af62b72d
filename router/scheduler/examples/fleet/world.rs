//! Runs schedulers against shards that take the time of a cost model, on a simulated clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use trunkline_scheduler::{
    Event, LaneId, Millis, Outcome, SampledToken, Scheduler, SchedulerConfig, SequenceId, SequenceRequest,
    SequenceResult, StepPlan, StepResult, StepWork, Update,
};

use crate::limits::shard_limits;
use crate::policy::{Balancer, Policy, Seen};
use crate::trace::{Traced, VOCAB_SIZE};

/// The microseconds of a step: a fixed time, and a time for each row, each position that rows of prompts read, and each
/// that decodes read.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    pub step_us: f64,
    pub row_us: f64,
    pub context_us: f64,
    pub decode_context_us: f64,
}

impl Cost {
    fn of(&self, plan: &StepPlan) -> u64 {
        let work = StepWork::of_plan(plan);
        let context =
            work.context as f64 * self.context_us + work.decode_context as f64 * self.decode_context_us;
        (self.step_us + work.rows as f64 * self.row_us + context) as u64
    }
}

/// The shards of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    pub num_shards: usize,
    pub num_blocks: u32,
    pub cost: Cost,
}

impl Fleet {
    /// One shard with the cache and the speed of all.
    pub fn whole(self) -> Self {
        let (num_shards, cost) = (self.num_shards, self.cost);
        let times = num_shards as f64;
        let cost = Cost {
            step_us: cost.step_us / times,
            row_us: cost.row_us / times,
            context_us: cost.context_us / times,
            decode_context_us: cost.decode_context_us / times,
        };
        Self { num_shards: 1, num_blocks: self.num_blocks * num_shards as u32, cost }
    }
}

/// Shards that are away for a part of the run. A shard that comes back has an empty cache.
#[derive(Clone, Copy, Debug)]
pub struct Absence {
    pub num_shards: usize,
    /// The begin, if they are there before.
    pub from_us: Option<u64>,
    pub until_us: u64,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct Outcomes {
    pub num_completed: usize,
    pub num_rejected: usize,
    /// Milliseconds from arrival to the first token, ascending.
    pub first_token_ms: Vec<f64>,
    pub prompt_tokens: u64,
    pub hit_tokens: u64,
    /// Tokens that each shard computed.
    pub computed: Vec<u64>,
    pub ended_ms: u64,
}

impl Outcomes {
    pub fn percentile_s(&self, percent: usize) -> f64 {
        let place =
            (self.first_token_ms.len() * percent / 100).min(self.first_token_ms.len().saturating_sub(1));
        self.first_token_ms.get(place).copied().unwrap_or(0.0) / 1e3
    }

    pub fn hit_rate(&self) -> f64 {
        self.hit_tokens as f64 / self.prompt_tokens.max(1) as f64
    }

    /// Returns the work of the busiest shard over the mean.
    pub fn balance(&self) -> f64 {
        let mean = self.computed.iter().sum::<u64>() as f64 / self.computed.len().max(1) as f64;
        self.computed.iter().copied().max().unwrap_or(0) as f64 / mean.max(1.0)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// A shard is lost with its cache.
    Leave(usize),
    /// A shard joins, or comes back with an empty cache.
    Join(usize),
    Arrival(usize),
    /// A shard has finished its oldest step, unless it was lost since.
    Step {
        scheduler: usize,
        lane: u32,
        num_losses: u32,
    },
    Wake {
        scheduler: usize,
    },
}

struct World<'a> {
    trace: &'a [Traced],
    fleet: Fleet,
    schedulers: Vec<Scheduler>,
    balancer: Balancer,
    /// The events, ordered by their microseconds.
    happenings: BinaryHeap<Reverse<(u64, u64, Happening)>>,
    num_happenings: u64,
    now_us: u64,
    /// The end of the last planned step, by scheduler and lane.
    free_us: BTreeMap<(usize, u32), u64>,
    /// The number of losses of its shard.
    num_losses: BTreeMap<(usize, u32), u32>,
    /// The results of its steps in flight.
    results: BTreeMap<(usize, u32), VecDeque<StepResult>>,
    /// The next time at which each scheduler is asked for a plan without an event.
    wakes_us: Vec<u64>,
    /// The scheduler of each open request, and whether its first token has come.
    open: BTreeMap<u64, (usize, bool)>,
    arrived_us: Vec<u64>,
    outcomes: Outcomes,
}

/// Sends the requests at these times, in microseconds, and returns the outcome.
pub fn run(
    trace: &[Traced],
    at_us: &[u64],
    fleet: Fleet,
    policy: Policy,
    absence: Option<Absence>,
) -> Outcomes {
    let (num_schedulers, num_lanes) = match policy {
        Policy::Lanes => (1, fleet.num_shards as u32),
        _ => (fleet.num_shards, 1),
    };
    let mut world = World {
        trace,
        fleet,
        schedulers: (0..num_schedulers).map(|_| scheduler(num_lanes)).collect(),
        balancer: Balancer::new(policy, num_schedulers),
        happenings: BinaryHeap::new(),
        num_happenings: 0,
        now_us: 0,
        free_us: BTreeMap::new(),
        num_losses: BTreeMap::new(),
        results: BTreeMap::new(),
        wakes_us: vec![0; num_schedulers],
        open: BTreeMap::new(),
        arrived_us: at_us.to_vec(),
        outcomes: Outcomes::default(),
    };
    let num_absent = absence.map_or(0, |absence| absence.num_shards);
    for shard in 0..fleet.num_shards {
        let absence = absence.filter(|_| shard >= fleet.num_shards - num_absent);
        match absence.map(|absence| absence.from_us) {
            Some(None) => world.seen_mut(shard).is_up = policy == Policy::Lanes,
            Some(Some(from_us)) => {
                world.join(shard);
                world.at(from_us, Happening::Leave(shard));
            }
            None => world.join(shard),
        }
        if let Some(absence) = absence {
            world.at(absence.until_us, Happening::Join(shard));
        }
    }
    at_us.iter().enumerate().for_each(|(index, &at)| world.at(at, Happening::Arrival(index)));
    world.run();
    world.outcomes
}

/// A scheduler without shards.
fn scheduler(num_lanes: u32) -> Scheduler {
    let config = SchedulerConfig {
        num_lanes,
        max_queued_requests: u32::MAX,
        max_prefill_tokens_beside_decodes: 2_048,
        ..SchedulerConfig::default()
    };
    Scheduler::new(config)
}

impl World<'_> {
    fn at(&mut self, at_us: u64, happening: Happening) {
        self.happenings.push(Reverse((at_us, self.num_happenings, happening)));
        self.num_happenings += 1;
    }

    fn run(&mut self) {
        while let Some(Reverse((at_us, _, happening))) = self.happenings.pop() {
            self.now_us = at_us;
            match happening {
                Happening::Leave(shard) => self.leave(shard),
                Happening::Join(shard) => self.join(shard),
                Happening::Arrival(index) => self.arrive(index, false),
                Happening::Step { scheduler, lane, num_losses } => {
                    if self.num_losses_of(scheduler, lane) != num_losses {
                        continue;
                    }
                    let results = self.results.entry((scheduler, lane)).or_default();
                    if let Some(result) = results.pop_front() {
                        self.handle(scheduler, Event::StepResult(LaneId(lane), result));
                    }
                    self.plan(scheduler);
                }
                Happening::Wake { scheduler } => self.plan(scheduler),
            }
        }
        (0..self.schedulers.len()).for_each(|scheduler| self.count(scheduler));
        self.outcomes.first_token_ms.sort_by(f64::total_cmp);
    }

    /// Adds what a scheduler has done to the outcomes.
    fn count(&mut self, scheduler: usize) {
        let of = &self.schedulers[scheduler];
        let stats = of.stats();
        self.outcomes.prompt_tokens += stats.prompt_tokens;
        self.outcomes.hit_tokens += stats.prefix_hit_tokens;
        self.outcomes.computed.resize(self.fleet.num_shards, 0);
        for lane in of.lane_ids() {
            self.outcomes.computed[scheduler + lane.0 as usize] += of.lane_stats(lane).scheduled_tokens;
        }
    }

    /// The scheduler and lane of a shard.
    fn place(&self, shard: usize) -> (usize, u32) {
        if self.balancer.policy == Policy::Lanes { (0, shard as u32) } else { (shard, 0) }
    }

    /// A shard as the balancer sees it.
    fn seen_mut(&mut self, shard: usize) -> &mut Seen {
        let (scheduler, _) = self.place(shard);
        &mut self.balancer.shards[scheduler]
    }

    fn num_losses_of(&self, scheduler: usize, lane: u32) -> u32 {
        self.num_losses.get(&(scheduler, lane)).copied().unwrap_or(0)
    }

    fn join(&mut self, shard: usize) {
        let (scheduler, lane) = self.place(shard);
        self.seen_mut(shard).is_up = true;
        let limits = shard_limits(self.trace[0].block_tokens, self.fleet.num_blocks, 128, VOCAB_SIZE);
        self.handle(scheduler, Event::ShardReady(LaneId(lane), limits));
        self.plan(scheduler);
    }

    /// Loses a shard. With lanes, the others take its sequences. A server of its own is lost with its scheduler, and
    /// its clients send their requests again at once.
    fn leave(&mut self, shard: usize) {
        let (scheduler, lane) = self.place(shard);
        *self.num_losses.entry((scheduler, lane)).or_default() += 1;
        self.results.remove(&(scheduler, lane));
        self.free_us.remove(&(scheduler, lane));
        if self.balancer.policy == Policy::Lanes {
            self.handle(scheduler, Event::ShardLost { lane: LaneId(lane), may_return: true });
            self.plan(scheduler);
            return;
        }
        self.count(scheduler);
        self.schedulers[scheduler] = self::scheduler(1);
        self.balancer.shards[scheduler] = Seen::empty(false);
        let broken = self.open.iter().filter(|(_, open)| open.0 == scheduler);
        let broken: Vec<(u64, bool)> = broken.map(|(&index, open)| (index, open.1)).collect();
        for (index, has_token) in broken {
            self.arrive(index as usize, has_token);
        }
    }

    /// Sends a request, which had a token before if it is sent again.
    fn arrive(&mut self, index: usize, has_token: bool) {
        let traced = &self.trace[index];
        for (seen, scheduler) in self.balancer.shards.iter_mut().zip(&self.schedulers) {
            let stats = scheduler.stats();
            seen.kv_use = stats.blocks_held as f64 / stats.blocks_total.max(1) as f64;
        }
        let chosen = self.balancer.choose(traced);
        let request = SequenceRequest {
            id: SequenceId(index as u64),
            token_ids: traced.prompt(),
            max_new_tokens: traced.num_output_tokens,
            ignore_eos: true,
            ..SequenceRequest::default()
        };
        self.open.insert(index as u64, (chosen, has_token));
        self.handle(chosen, Event::Submit(Box::new(request)));
        self.plan(chosen);
    }

    fn handle(&mut self, scheduler: usize, event: Event) {
        let mut updates = Vec::new();
        self.schedulers[scheduler].handle(Millis(self.now_us / 1_000), event, &mut updates);
        self.take(updates);
    }

    fn take(&mut self, updates: Vec<Update>) {
        for update in updates {
            match update {
                Update::Token { id, .. } => {
                    if let Some((_, has_token)) = self.open.get_mut(&id.0)
                        && !std::mem::replace(has_token, true)
                    {
                        let wait_us = self.now_us - self.arrived_us[id.0 as usize];
                        self.outcomes.first_token_ms.push(wait_us as f64 / 1e3);
                    }
                }
                Update::Ended { id, .. } => {
                    self.outcomes.num_completed += 1;
                    self.outcomes.ended_ms = self.now_us / 1_000;
                    self.close(id);
                }
                Update::Rejected { id, .. } => {
                    self.outcomes.num_rejected += 1;
                    self.close(id);
                }
                _ => {}
            }
        }
    }

    fn close(&mut self, id: SequenceId) {
        if let Some((chosen, _)) = self.open.remove(&id.0) {
            self.balancer.shards[chosen].num_open -= 1;
        }
    }

    /// Plans as the router does: all lanes, until none has a further plan.
    fn plan(&mut self, scheduler: usize) {
        let mut has_planned = true;
        while has_planned {
            has_planned = false;
            for lane in self.schedulers[scheduler].lane_ids() {
                let mut updates = Vec::new();
                let plan = self.schedulers[scheduler].plan(lane, Millis(self.now_us / 1_000), &mut updates);
                self.take(updates);
                let Some(plan) = plan else { continue };
                has_planned = true;
                let device_time_us = self.fleet.cost.of(&plan);
                let free_us = self.free_us.entry((scheduler, lane.0)).or_default();
                *free_us = self.now_us.max(*free_us) + device_time_us;
                let end_us = *free_us;
                let result = answer(&plan, device_time_us);
                self.results.entry((scheduler, lane.0)).or_default().push_back(result);
                let num_losses = self.num_losses_of(scheduler, lane.0);
                self.at(end_us, Happening::Step { scheduler, lane: lane.0, num_losses });
            }
        }
        if let Some(wake) = self.schedulers[scheduler].next_wakeup() {
            let at_us = (wake.0 * 1_000).max(self.now_us + 1_000);
            if self.wakes_us[scheduler] <= self.now_us || at_us < self.wakes_us[scheduler] {
                self.wakes_us[scheduler] = at_us;
                self.at(at_us, Happening::Wake { scheduler });
            }
        }
    }
}

fn answer(plan: &StepPlan, device_time_us: u64) -> StepResult {
    let token = SampledToken { token_id: 1, ..SampledToken::default() };
    let result = |sequence_id| SequenceResult {
        sequence_id,
        outcome: Some(Outcome::Token(token.clone())),
        ..SequenceResult::default()
    };
    let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
    let sequences = sampled.map(|chunk| result(chunk.sequence_id)).collect();
    StepResult { step_id: plan.step_id, sequences, device_time_us, draft_time_us: 0 }
}
