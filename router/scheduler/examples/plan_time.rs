//! Measures the scheduler's own work: `cargo run --release -p trunkline-scheduler --example plan_time`.
//!
//! It decodes many sequences with short and with long contexts, where the time per step must not grow with the context.
//! It also measures the cost of a long prompt, when it starts and when a prefix hit covers it, and of several lanes: of
//! their decodes, and of plans that pass over many waiting requests.
#![allow(clippy::print_stdout, clippy::disallowed_types, missing_docs)]

use std::collections::VecDeque;
use std::time::Instant;

use trunkline_scheduler::{
    Event, LaneId, Millis, Outcome, SampledToken, SamplingParams, Scheduler, SchedulerConfig, SequenceId,
    SequenceRequest, SequenceResult, ShardLimits, StepPlan, StepResult, Update,
};

const NUM_STEPS: u32 = 2_000;

struct Clock {
    plan_ns: u128,
    result_ns: u128,
    worst_ns: u128,
    num_steps: u128,
    num_tokens: u128,
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
    let limits = ShardLimits {
        block_size: 16,
        num_blocks,
        max_step_tokens: 8_192,
        max_step_sequences: 64,
        vocab_size: 50_000,
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

/// Steps of each lane without run-ahead, until `num_steps` are done or nothing is left. Every lane is asked for a plan
/// after every event, as the router does.
fn drive(scheduler: &mut Scheduler, num_steps: u32) -> Clock {
    let mut clock = Clock { plan_ns: 0, result_ns: 0, worst_ns: 0, num_steps: 0, num_tokens: 0 };
    let mut updates: Vec<Update> = Vec::new();
    let mut in_flight: VecDeque<(LaneId, StepResult)> = VecDeque::new();
    for step in 0..num_steps {
        let now = Millis(step.into());
        updates.clear();
        for lane in scheduler.lane_ids() {
            let begin = Instant::now();
            // The first lane computes one step after the other, so that those of the lanes alternate.
            let is_busy = in_flight.iter().any(|(of, _)| *of == lane);
            let plan = if is_busy { None } else { scheduler.plan(lane, now, &mut updates) };
            let plan_ns = begin.elapsed().as_nanos();
            clock.plan_ns += plan_ns;
            clock.worst_ns = clock.worst_ns.max(plan_ns);
            if let Some(plan) = plan {
                clock.num_steps += 1;
                clock.num_tokens += plan.chunks.iter().filter(|chunk| chunk.sample).count() as u128;
                in_flight.push_back((lane, answer(&plan, step % 50_000)));
            }
        }
        let Some((lane, result)) = in_flight.pop_front() else { break };
        let begin = Instant::now();
        scheduler.handle(now, Event::StepResult(lane, result), &mut updates);
        clock.result_ns += begin.elapsed().as_nanos();
    }
    clock
}

fn show(what: &str, clock: &Clock) {
    let mean = |ns: u128| ns as f64 / 1e3 / clock.num_steps.max(1) as f64;
    println!(
        "{what:<44} plan {:>6.1} us, worst {:>7.1} us; result {:>6.1} us; {:.3} us a token; {} steps",
        mean(clock.plan_ns),
        clock.worst_ns as f64 / 1e3,
        mean(clock.result_ns),
        (clock.plan_ns + clock.result_ns) as f64 / 1e3 / clock.num_tokens.max(1) as f64,
        clock.num_steps
    );
}

fn submit(scheduler: &mut Scheduler, request: SequenceRequest) {
    scheduler.handle(Millis(0), Event::Submit(Box::new(request)), &mut Vec::new());
}

fn main() {
    for (num_lanes, num_sequences, num_prompt_tokens) in
        [(1, 1, 100), (1, 64, 100), (1, 64, 10_000), (1, 8, 100_000), (2, 128, 100), (8, 512, 100)]
    {
        let mut scheduler = self::scheduler(num_lanes, 64 * (10_000 + NUM_STEPS) / 16 + 10_000);
        for id in 0..num_sequences {
            submit(&mut scheduler, request(id, num_prompt_tokens, NUM_STEPS * 2));
        }
        let what = format!("{num_lanes} lanes, {num_sequences} x {num_prompt_tokens} tokens");
        while scheduler.stats().output_tokens < num_sequences || scheduler.stats().num_waiting > 0 {
            drive(&mut scheduler, num_lanes);
        }
        show(&format!("{what}: decode"), &drive(&mut scheduler, NUM_STEPS * num_lanes));
    }
    // The first lane has the beginning of all that wait, and the others have room.
    let mut scheduler = self::scheduler(8, 100_000);
    let beginning = request(0, 4_000, 1);
    submit(&mut scheduler, beginning.clone());
    drive(&mut scheduler, 1_000);
    for id in 1..1_450 {
        let is_alike = id >= 400;
        let mut next = if is_alike { beginning.clone() } else { request(id, 100, NUM_STEPS) };
        if is_alike {
            next.token_ids.extend([id as u32; 20]);
        }
        (next.id, next.max_new_tokens) = (SequenceId(id), NUM_STEPS);
        submit(&mut scheduler, next);
        if id == 399 {
            drive(&mut scheduler, 100);
        }
    }
    show("8 lanes, 1050 wait for the first one", &drive(&mut scheduler, NUM_STEPS));
    println!("{} still wait", scheduler.stats().num_waiting);
    let mut scheduler = self::scheduler(1, 10_000);
    for id in [1, 2] {
        let mut long = request(1, 100_000, 2);
        long.id = SequenceId(id);
        let begin = Instant::now();
        scheduler.handle(Millis(0), Event::Submit(Box::new(long)), &mut Vec::new());
        let submit_us = begin.elapsed().as_nanos() as f64 / 1e3;
        let what = if id == 1 { "100000 tokens, new" } else { "100000 tokens, found again" };
        show(what, &drive(&mut scheduler, 1_000));
        println!("{:<44} submit {submit_us:>6.1} us", "");
    }
    println!("{:?}", scheduler.stats());
}
