//! Runs schedulers against shards that take the time of a cost model, on a simulated clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use trunkline_scheduler::{
    Event, LaneId, Millis, Outcome, SampledToken, Scheduler, SchedulerConfig, SequenceId, SequenceRequest,
    SequenceResult, ShardLimits, StepPlan, StepResult, StepWork, Update,
};

use crate::policy::{Balancer, Policy};
use crate::trace::{BLOCK_TOKENS, Traced, VOCAB_SIZE};

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
    Arrival(usize),
    /// A shard has finished its oldest step.
    Step {
        scheduler: usize,
        lane: u32,
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
pub fn run(trace: &[Traced], at_us: &[u64], fleet: Fleet, policy: Policy) -> Outcomes {
    let (num_schedulers, num_lanes) = match policy {
        Policy::Lanes => (1, fleet.num_shards as u32),
        _ => (fleet.num_shards, 1),
    };
    let mut world = World {
        trace,
        fleet,
        schedulers: (0..num_schedulers).map(|_| scheduler(num_lanes, fleet.num_blocks)).collect(),
        balancer: Balancer::new(policy, num_schedulers),
        happenings: BinaryHeap::new(),
        num_happenings: 0,
        now_us: 0,
        free_us: BTreeMap::new(),
        results: BTreeMap::new(),
        wakes_us: vec![0; num_schedulers],
        open: BTreeMap::new(),
        arrived_us: at_us.to_vec(),
        outcomes: Outcomes::default(),
    };
    at_us.iter().enumerate().for_each(|(index, &at)| world.at(at, Happening::Arrival(index)));
    world.run();
    world.outcomes
}

fn scheduler(num_lanes: u32, num_blocks: u32) -> Scheduler {
    let config = SchedulerConfig {
        num_lanes,
        max_queued_requests: u32::MAX,
        max_prefill_tokens_beside_decodes: 2_048,
        ..SchedulerConfig::default()
    };
    let mut scheduler = Scheduler::new(config);
    let limits = ShardLimits {
        block_size: BLOCK_TOKENS,
        num_blocks,
        max_step_tokens: 8_192,
        max_step_sequences: 128,
        vocab_size: VOCAB_SIZE,
        vector_size: 0,
        windows: None,
        numerics: 0,
        max_draft_tokens: 0,
        max_own_drafts: 0,
    };
    for lane in scheduler.lane_ids() {
        scheduler.handle(Millis(0), Event::ShardReady(lane, limits), &mut Vec::new());
    }
    scheduler
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
                Happening::Arrival(index) => self.arrive(index),
                Happening::Step { scheduler, lane } => {
                    let results = self.results.entry((scheduler, lane)).or_default();
                    if let Some(result) = results.pop_front() {
                        self.handle(scheduler, Event::StepResult(LaneId(lane), result));
                    }
                    self.plan(scheduler);
                }
                Happening::Wake { scheduler } => self.plan(scheduler),
            }
        }
        let stats = self.schedulers.iter().map(Scheduler::stats);
        for stats in stats {
            self.outcomes.prompt_tokens += stats.prompt_tokens;
            self.outcomes.hit_tokens += stats.prefix_hit_tokens;
        }
        let lanes = self.schedulers.iter().flat_map(|scheduler| {
            scheduler.lane_ids().map(|lane| scheduler.lane_stats(lane).scheduled_tokens).collect::<Vec<_>>()
        });
        self.outcomes.computed = lanes.collect();
        self.outcomes.first_token_ms.sort_by(f64::total_cmp);
    }

    fn arrive(&mut self, index: usize) {
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
        self.open.insert(index as u64, (chosen, false));
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
                self.at(end_us, Happening::Step { scheduler, lane: lane.0 });
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
