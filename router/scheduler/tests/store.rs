//! What the scheduler promises of the store, one promise a test, step by step against the fake shard.

#[allow(dead_code)]
mod sim;

use sim::driver::{Driver, LIMITS};
use sim::scenario::request;
use trunkline_scheduler::*;

const BLOCK: u32 = LIMITS.block_size;

fn driver() -> Driver {
    Driver::new(SchedulerConfig::default(), LIMITS).with_store(32)
}

fn text(of: u32, count: u32) -> Vec<u32> {
    (0..count).map(|position| (of * 7 + position * 3) % LIMITS.vocab_size).collect()
}

/// A conversation of 22 tokens and two of output, stored and then lost with its shard.
fn after_a_kill() -> (Driver, Vec<u32>) {
    let mut driver = driver();
    let prompt = text(1, 22);
    driver.submit(request(1, prompt.clone(), 2));
    let plans = driver.run();
    let stores: Vec<u32> = plans
        .iter()
        .flat_map(|plan| &plan.chunks)
        .flat_map(|chunk| &chunk.stores)
        .map(|s| s.block_index)
        .collect();
    assert_eq!(stores, [0, 1, 2, 3, 4], "every block that is full, once");
    assert_eq!(driver.scheduler.stats().store_blocks, 5);
    driver.restart_shard();
    assert_eq!(driver.scheduler.stats().store_blocks, 5);
    (driver, prompt)
}

#[test]
fn what_was_acknowledged_is_restored_after_a_kill() {
    let (mut driver, prompt) = after_a_kill();
    driver.submit(request(2, prompt, 2));
    let plan = driver.step().expect("a plan that restores");
    assert!(plan.chunks.is_empty() && plan.starts.is_empty());
    assert_eq!(plan.restores.len(), 1);
    assert_eq!(plan.restores[0].blocks.len(), 5);
    assert!(driver.step().is_none(), "nothing to compute until they are there");
    driver.end_restores(usize::MAX);
    let plans = driver.run();
    assert_eq!(driver.started(2).map(|(cached, _)| cached), Some(5 * BLOCK));
    assert_eq!((plans[0].chunks[0].first_position, plans[0].chunks[0].num_tokens), (20, 2));
    assert!(
        plans.iter().all(|plan| plan.chunks.iter().all(|chunk| chunk.stores.is_empty())),
        "nothing twice"
    );
    assert_eq!(driver.output(2).len(), 2);
    assert_eq!(driver.scheduler.stats().restored_blocks, 5);
    assert_eq!(driver.scheduler.stats().blocks_held, 0);
}

#[test]
fn others_go_on_while_blocks_are_read() {
    let (mut driver, prompt) = after_a_kill();
    driver.submit(request(2, prompt, 2));
    driver.submit(request(3, text(5, 9), 3));
    let plan = driver.step().expect("a plan");
    assert_eq!((plan.restores.len(), plan.chunks.len()), (1, 1), "the other one computes");
    driver.run();
    assert_eq!(driver.ended(3), Some(&EndReason::Length));
    assert_eq!(driver.ended(2), None);
    driver.end_restores(usize::MAX);
    driver.run();
    assert_eq!(driver.ended(2), Some(&EndReason::Length));
}

#[test]
fn a_broken_block_is_computed_and_stored_again() {
    let (mut driver, prompt) = after_a_kill();
    driver.submit(request(2, prompt, 2));
    driver.step();
    driver.end_restores(3);
    let plans = driver.run();
    assert_eq!(driver.started(2).map(|(cached, _)| cached), Some(3 * BLOCK));
    assert_eq!(plans[0].chunks[0].first_position, 3 * BLOCK);
    let stats = driver.scheduler.stats();
    assert_eq!((stats.restored_blocks, stats.restore_failures), (3, 1));
    let stores: Vec<u32> =
        plans.iter().flat_map(|plan| &plan.chunks).flat_map(|c| &c.stores).map(|s| s.block_index).collect();
    assert_eq!(stores, [3, 4]);
    // The last of them was never broken: it is there already.
    assert_eq!(stats.store_blocks, 5);
}

#[test]
fn who_leaves_while_blocks_are_read_gives_them_up_when_they_are_there() {
    let (mut driver, prompt) = after_a_kill();
    driver.submit(request(2, prompt.clone(), 2));
    driver.step();
    driver.handle(Event::Abort(SequenceId(2)));
    assert_eq!(driver.ended(2), Some(&EndReason::Aborted));
    assert_eq!(driver.scheduler.stats().blocks_held, 5, "they are still written");
    driver.end_restores(usize::MAX);
    driver.run();
    let stats = driver.scheduler.stats();
    assert_eq!((stats.blocks_held, stats.blocks_cached), (0, 5), "and the next one has them");
    driver.submit(request(3, prompt, 1));
    assert!(driver.run().iter().all(|plan| plan.restores.is_empty()));
    assert_eq!(driver.started(3).map(|(cached, _)| cached), Some(5 * BLOCK));
}

#[test]
fn one_reads_for_all_that_share_a_prefix() {
    let (mut driver, prompt) = after_a_kill();
    driver.submit(request(2, prompt.clone(), 1));
    driver.submit(request(3, [prompt, vec![3; 5]].concat(), 1));
    let plan = driver.step().expect("a plan");
    assert_eq!((plan.restores.len(), plan.chunks.len()), (1, 0));
    driver.end_restores(usize::MAX);
    let plans = driver.run();
    assert!(plans.iter().all(|plan| plan.restores.is_empty()));
    assert_eq!(driver.started(3).map(|(cached, _)| cached), Some(5 * BLOCK));
    assert_eq!(driver.scheduler.stats().prefix_waits, 1);
}

#[test]
fn a_store_slower_than_the_device_is_not_read() {
    let (mut driver, prompt) = after_a_kill();
    // A step's time is known, and soon that of a restore.
    driver.submit(request(2, text(9, 20), 1));
    driver.run();
    driver.submit(request(3, prompt.clone(), 1));
    driver.step();
    driver.end_restores_after(usize::MAX, 60_000_000);
    driver.run();
    driver.restart_shard();
    driver.submit(request(4, prompt, 1));
    let plan = driver.step().expect("a plan");
    assert_eq!((plan.restores.len(), plan.chunks[0].first_position), (0, 0));
    assert_eq!(driver.scheduler.stats().restores_declined, 1);
    driver.run();
    assert_eq!(driver.ended(4), Some(&EndReason::Length));
}

#[test]
fn another_salt_reads_nothing() {
    let (mut driver, prompt) = after_a_kill();
    let mut foreign = request(2, prompt, 1);
    foreign.salt = Salt::new(&["another"]);
    driver
        .known
        .insert(2, sim::shard::Known { salt: 9, prompt: foreign.token_ids.clone(), is_constrained: false });
    driver.handle(Event::Submit(foreign));
    assert!(driver.run().iter().all(|plan| plan.restores.is_empty()));
    assert_eq!(driver.started(2).map(|(cached, _)| cached), Some(0));
}
