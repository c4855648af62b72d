//! Measures the scheduler's own work: `cargo run --release -p trunkline-scheduler --example plan_time`.
//!
//! It decodes many sequences with short and with long contexts, where the time per step must not grow with the context.
//! It also measures the cost of a long prompt, when it starts and when a prefix hit covers it, and of several lanes: of
//! their decodes, and of plans that pass over many waiting requests, which another lane should take or which lack a
//! slot for their adapters. An argument such as `"8 lanes"` selects runs.
#![allow(clippy::print_stdout, clippy::disallowed_types, missing_docs)]

#[path = "fleet/limits.rs"]
mod limits;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use limits::shard_limits;
use trunkline_scheduler::{
    AdapterHash, AdapterLoad, AdapterOutcome, AdapterUse, Event, LaneId, Millis, Outcome, SampledToken,
    SamplingParams, Scheduler, SchedulerConfig, SequenceId, SequenceRequest, SequenceResult, ShardLimits,
    StepPlan, StepResult, Transfers, Update,
};

const NUM_STEPS: u32 = 2_000;

/// The number of times that each run is done. What is planned is the same each time, and the quickest time of a plan
/// has the least of other processes' work in it.
const NUM_RUNS: usize = 5;

#[derive(Clone, Default)]
struct Clock {
    /// Nanoseconds of each call of `plan`, and of each result.
    plans_ns: Vec<u128>,
    results_ns: Vec<u128>,
    num_steps: usize,
    num_tokens: usize,
}

impl Clock {
    /// Takes the quicker time of each call.
    fn merge(&mut self, other: &Self) {
        let pairs = |own: &mut Vec<u128>, other: &[u128]| {
            own.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).min(*other));
        };
        pairs(&mut self.plans_ns, &other.plans_ns);
        pairs(&mut self.results_ns, &other.results_ns);
    }
}

fn answer(plan: &StepPlan, token_id: u32) -> StepResult {
    let outcome = |id: u64| SequenceResult {
        sequence_id: id,
        outcome: Some(Outcome::Token(SampledToken { token_id, ..SampledToken::default() })),
        ..SequenceResult::default()
    };
    let sampled = plan.chunks.iter().filter(|chunk| chunk.sample);
    let sequences = sampled.map(|chunk| outcome(chunk.sequence_id)).collect();
    StepResult { step_id: plan.step_id, sequences, device_time_us: 1_000, draft_time_us: 0 }
}

fn request(id: u64, num_prompt_tokens: u32, max_new_tokens: u32) -> SequenceRequest {
    let token_ids = (0..num_prompt_tokens).map(|position| (position ^ (id as u32 * 7919)) % 50_000).collect();
    SequenceRequest {
        id: SequenceId(id),
        token_ids,
        max_new_tokens,
        ignore_eos: true,
        sampling: SamplingParams { end_token_ids: vec![1], ..SamplingParams::default() },
        ..SequenceRequest::default()
    }
}

fn scheduler(num_lanes: u32, num_blocks: u32) -> Scheduler {
    let config = SchedulerConfig { num_lanes, max_queued_requests: 2_000, ..SchedulerConfig::default() };
    let mut scheduler = Scheduler::new(config);
    let limits = shard_limits(16, num_blocks, 64, 50_000);
    for lane in scheduler.lane_ids() {
        scheduler.handle(Millis(0), Event::ShardReady(lane, limits), &mut Vec::new());
    }
    scheduler
}

/// Steps of each lane without run-ahead, until `num_steps` are done or nothing is left. Every lane is asked for a plan
/// after every event, as the router does.
fn drive(scheduler: &mut Scheduler, num_steps: u32) -> Clock {
    let mut clock = Clock::default();
    // No earlier call went on for longer.
    let begin_ms = 10 * scheduler.stats().steps;
    let mut updates: Vec<Update> = Vec::new();
    let mut in_flight: VecDeque<(LaneId, StepResult)> = VecDeque::new();
    for step in 0..num_steps {
        let now = Millis(begin_ms + u64::from(step));
        updates.clear();
        for lane in scheduler.lane_ids() {
            let begin = Instant::now();
            let is_busy = in_flight.iter().any(|(of, _)| *of == lane);
            let plan = if is_busy { None } else { scheduler.plan(lane, now, &mut updates) };
            let plan_ns = begin.elapsed().as_nanos();
            clock.plans_ns.push(plan_ns);
            if let Some(plan) = plan {
                clock.num_steps += 1;
                clock.num_tokens += plan.chunks.iter().filter(|chunk| chunk.sample).count();
                let loaded = |load: &AdapterLoad| AdapterOutcome { slot: load.slot, problem: String::new() };
                if !plan.adapter_loads.is_empty() {
                    let adapters = plan.adapter_loads.iter().map(loaded).collect();
                    let transfers = Transfers { adapters, ..Transfers::default() };
                    scheduler.handle(now, Event::Transfers(lane, transfers), &mut updates);
                }
                in_flight.push_back((lane, answer(&plan, step % 50_000)));
            }
        }
        let Some((lane, result)) = in_flight.pop_front() else { break };
        let begin = Instant::now();
        scheduler.handle(now, Event::StepResult(lane, result), &mut updates);
        clock.results_ns.push(begin.elapsed().as_nanos());
    }
    for (lane, result) in in_flight {
        scheduler.handle(
            Millis(begin_ms + u64::from(num_steps)),
            Event::StepResult(lane, result),
            &mut updates,
        );
    }
    clock
}

/// Prints the times of a run. `prepare` returns its scheduler.
fn show(what: &str, num_steps: u32, prepare: impl Fn() -> Scheduler) -> Scheduler {
    let mut scheduler = prepare();
    let mut clock = drive(&mut scheduler, num_steps);
    for _ in 1..NUM_RUNS {
        clock.merge(&drive(&mut prepare(), num_steps));
    }
    let us = |ns: &[u128]| ns.iter().sum::<u128>() as f64 / 1e3;
    let (plans_us, results_us) = (us(&clock.plans_ns), us(&clock.results_ns));
    let num_steps = clock.num_steps.max(1) as f64;
    println!(
        "{what:<44} plan {:>6.1} us, worst {:>7.1} us; result {:>6.1} us; {:.3} us a token; {} steps",
        plans_us / num_steps,
        clock.plans_ns.iter().max().copied().unwrap_or(0) as f64 / 1e3,
        results_us / num_steps,
        (plans_us + results_us) / clock.num_tokens.max(1) as f64,
        clock.num_steps
    );
    scheduler
}

fn submit(scheduler: &mut Scheduler, request: SequenceRequest) {
    scheduler.handle(Millis(0), Event::Submit(Box::new(request)), &mut Vec::new());
}

/// Sequences that all decode.
fn decoding(num_lanes: u32, num_sequences: u64, num_prompt_tokens: u32) -> Scheduler {
    let mut scheduler = scheduler(num_lanes, 64 * (10_000 + NUM_STEPS) / 16 + 10_000);
    for id in 0..num_sequences {
        submit(&mut scheduler, request(id, num_prompt_tokens, NUM_STEPS * 2));
    }
    while scheduler.stats().output_tokens < num_sequences || scheduler.stats().num_waiting > 0 {
        drive(&mut scheduler, num_lanes);
    }
    scheduler
}

/// Eight lanes, of which the first has the long beginning of all that wait, and the others have room.
fn passing() -> Scheduler {
    let mut scheduler = scheduler(8, 100_000);
    let beginning = request(0, 4_000, 1);
    submit(&mut scheduler, beginning.clone());
    drive(&mut scheduler, 1_000);
    for id in 1..400 {
        submit(&mut scheduler, request(id, 100, NUM_STEPS * 2));
    }
    drive(&mut scheduler, 200);
    for id in 400..1_450 {
        let mut alike = beginning.clone();
        alike.token_ids.extend([id as u32; 20]);
        (alike.id, alike.max_new_tokens) = (SequenceId(id), NUM_STEPS);
        submit(&mut scheduler, alike);
    }
    scheduler
}

/// Requests with a thousand adapters. Runs hold all 32 slots, and the others wait for one.
fn lacking_slots() -> Scheduler {
    let mut scheduler = scheduler(1, 100_000);
    let limits =
        ShardLimits { num_adapter_slots: 32, adapter_bytes: 32, ..shard_limits(16, 100_000, 64, 50_000) };
    scheduler.handle(Millis(0), Event::ShardReady(LaneId::FIRST, limits), &mut Vec::new());
    for id in 0..1_000 {
        let mut asked = request(id, 100, NUM_STEPS * 2);
        let mut content_hash = AdapterHash([0; 32]);
        content_hash.0[..8].copy_from_slice(&id.to_le_bytes());
        let adapter = AdapterUse {
            name: "adapter".into(),
            path: "/adapter".into(),
            content_hash,
            num_bytes: 1,
            scale: 1.0,
        };
        asked.salt.adapter = Some(adapter.in_salt());
        asked.adapter = Some(Arc::new(adapter));
        submit(&mut scheduler, asked);
    }
    drive(&mut scheduler, 200);
    scheduler
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for (num_lanes, num_sequences, num_prompt_tokens) in
        [(1, 1, 100), (1, 64, 100), (1, 64, 10_000), (1, 8, 100_000), (2, 128, 100), (8, 512, 100)]
    {
        let what = format!("{num_lanes} lanes, {num_sequences} x {num_prompt_tokens} tokens: decode");
        if !what.contains(&wanted) {
            continue;
        }
        show(&what, NUM_STEPS * num_lanes, || decoding(num_lanes, num_sequences, num_prompt_tokens));
    }
    let what = "8 lanes, 1050 prefer the first one";
    if what.contains(&wanted) {
        let passed = show(what, NUM_STEPS, passing);
        println!("{:<44} {} still wait", "", passed.stats().num_waiting);
    }
    let what = "1 lanes, 968 wait for a slot";
    if what.contains(&wanted) {
        let lacking = show(what, NUM_STEPS, lacking_slots);
        println!("{:<44} {} still wait", "", lacking.stats().num_waiting);
    }
    for (what, is_known) in [("100000 tokens, new", false), ("100000 tokens, found again", true)] {
        if !what.contains(&wanted) {
            continue;
        }
        let prepare = || {
            let mut scheduler = scheduler(1, 10_000);
            if is_known {
                submit(&mut scheduler, request(1, 100_000, 2));
                drive(&mut scheduler, 1_000);
            }
            let mut long = request(1, 100_000, 2);
            long.id = SequenceId(2);
            let begin = Instant::now();
            submit(&mut scheduler, long);
            println!("{what:<44} submit {:.1} us", begin.elapsed().as_nanos() as f64 / 1e3);
            scheduler
        };
        show(what, 1_000, prepare);
    }
}
