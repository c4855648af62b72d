//! Counts the allocations that a step of decodes makes in the scheduler. They are counted by thread, because other
//! tests run at the same time.
//!
//! The plan moves to the task that encodes it, so its chunks are one allocation. All other memory is reused from step
//! to step. A step in which sequences get their next blocks also allocates for these.

use std::cell::Cell;

use trunkline_scheduler::{
    Event, LaneId, Millis, Scheduler, SchedulerConfig, SequenceRequest, ShardLimits, Update,
};

use crate::counting::Counting;
use crate::sim::driver::{LIMITS, answer};
use crate::sim::scenario::request;

thread_local! {
    /// The counter of this thread. It needs no allocation itself and lives until the thread has ended.
    static NUM_ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

fn count() {
    NUM_ALLOCATIONS.set(NUM_ALLOCATIONS.get() + 1);
}

#[global_allocator]
static ALLOCATOR: Counting = Counting(count);

/// Runs `work` and counts the allocations of this thread.
fn allocations<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = NUM_ALLOCATIONS.get();
    let result = work();
    (result, NUM_ALLOCATIONS.get() - before)
}

const NUM_SEQUENCES: u64 = 32;
const BLOCK_SIZE: u32 = 64;
/// Prompt lengths that differ and are no multiples of a block, so that new blocks are due in different steps.
const PROMPT_TOKENS: u32 = 600;
const WARM_UP_STEPS: u64 = 100;
const NUM_STEPS: u64 = 320;
/// The allocation of a plan's chunks.
const PER_STEP: usize = 1;
/// The most allocations for a block that becomes full and for the next one, in the plan, the table and the tree.
const PER_NEW_BLOCK: usize = 4;

fn prompt(id: u64) -> Vec<u32> {
    let token_ids = (0..PROMPT_TOKENS + id as u32).map(|position| position * 31 + id as u32 * 7919);
    token_ids.map(|token| token % 50_000).collect()
}

/// Plans and answers one step. Returns its allocations in the scheduler, and the number of new blocks in its plan.
fn step(scheduler: &mut Scheduler, now: Millis, updates: &mut Vec<Update>) -> (usize, usize) {
    updates.clear();
    let (plan, in_plan) = allocations(|| scheduler.plan(LaneId::FIRST, now, updates));
    let plan = plan.expect("everybody decodes");
    let num_new_blocks = plan.chunks.iter().map(|chunk| chunk.new_block_ids.len()).sum();
    let result = Event::StepResult(LaneId::FIRST, answer(&plan, 7));
    let ((), in_result) = allocations(|| scheduler.handle(now, result, updates));
    (in_plan + in_result, num_new_blocks)
}

#[test]
fn a_decode_step_allocates_for_its_plan_and_for_new_blocks() {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    let limits = ShardLimits {
        block_size: BLOCK_SIZE,
        num_blocks: 4096,
        max_step_tokens: 8192,
        max_step_sequences: 64,
        vocab_size: 50_000,
        ..LIMITS
    };
    let mut updates = Vec::new();
    scheduler.handle(Millis(0), Event::ShardReady(LaneId::FIRST, limits), &mut updates);
    for id in 0..NUM_SEQUENCES {
        let asked = SequenceRequest { ignore_eos: true, ..request(id, prompt(id), 4096) };
        scheduler.handle(Millis(0), Event::Submit(Box::new(asked)), &mut updates);
    }
    let mut now = 0;
    while scheduler.stats().output_tokens < NUM_SEQUENCES * WARM_UP_STEPS {
        now += 1;
        step(&mut scheduler, Millis(now), &mut updates);
    }
    let (mut num_plain, mut num_new_blocks, mut had_new_blocks) = (0, 0, 0);
    let mut num_grown = 0;
    for _ in 0..NUM_STEPS {
        now += 1;
        let (count, new_blocks) = step(&mut scheduler, Millis(now), &mut updates);
        assert_eq!(updates.len() as u64, NUM_SEQUENCES, "everybody decodes");
        // The step after one with new blocks may allocate too, because full blocks enter the tree with its result.
        let blocks = new_blocks + had_new_blocks;
        if count > PER_STEP + PER_NEW_BLOCK * blocks {
            // A table of the tree or the policy may double.
            num_grown += 1;
            assert!(count <= PER_STEP + PER_NEW_BLOCK * (blocks + 1), "{count} allocations, {blocks} blocks");
        }
        num_plain += u64::from(blocks == 0);
        num_new_blocks += new_blocks as u64;
        had_new_blocks = new_blocks;
    }
    assert!(num_grown <= NUM_STEPS / 100, "{num_grown} steps made a table grow");
    assert!(num_plain > NUM_STEPS / 4);
    assert_eq!(num_new_blocks, NUM_SEQUENCES * NUM_STEPS / u64::from(BLOCK_SIZE));
}
