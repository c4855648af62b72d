//! The scheduler's promises about the store, one for each test, checked step by step against the fake shard.

use crate::sim::driver::{Driver, LIMITS};
use crate::sim::scenario::request;
use trunkline_scheduler::*;

const BLOCK: u32 = LIMITS.block_size;

fn driver() -> Driver {
    Driver::new(SchedulerConfig::default(), LIMITS).with_store(32)
}

fn text(of: u32, count: u32) -> Vec<u32> {
    (0..count).map(|position| (of * 7 + position * 3) % LIMITS.vocab_size).collect()
}

/// Stores a conversation of 22 tokens and two of output, then kills its shard.
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
fn acknowledged_blocks_are_restored_after_a_kill() {
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
fn a_decode_stores_few_blocks_of_a_backlog() {
    let limits = ShardLimits { max_step_tokens: 128, ..LIMITS };
    let mut driver = Driver::new(SchedulerConfig::default(), limits).with_store(60);
    driver.submit(request(1, text(1, 100), 6));
    let plans = driver.run();
    let num_stores: Vec<usize> =
        plans.iter().flat_map(|plan| &plan.chunks).map(|chunk| chunk.stores.len()).collect();
    // The prompt has 25 blocks, and the fourth decode completes one more.
    assert_eq!(num_stores, [16, 4, 4, 1, 1, 0]);
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
    // The last block was never damaged, so it is stored already.
    assert_eq!(stats.store_blocks, 5);
}

#[test]
fn a_sequence_that_ends_during_a_restore_releases_its_blocks_after_it() {
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
    // The time of a step is known, and the time of a restore will be soon.
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
    let salt = Salt::default().with_cache_salt("another");
    driver.submit(SequenceRequest { salt, ..request(2, prompt, 1) });
    assert!(driver.run().iter().all(|plan| plan.restores.is_empty()));
    assert_eq!(driver.started(2).map(|(cached, _)| cached), Some(0));
}

/// Stores another conversation than `after_a_kill`, before its shard is killed once more.
fn after_another_kill() -> (Driver, Vec<u32>, Vec<u32>) {
    let (mut driver, prompt) = after_a_kill();
    let other = text(8, 13);
    driver.submit(request(20, other.clone(), 1));
    driver.run();
    driver.restart_shard();
    (driver, prompt, other)
}

#[test]
fn a_read_that_hangs_is_given_up_and_its_blocks_stay_reserved() {
    let (mut driver, prompt, other) = after_another_kill();
    driver.submit(request(2, prompt.clone(), 2));
    let plan = driver.step().expect("a plan that restores");
    let late: Vec<BlockId> = plan.restores[0].blocks.iter().map(|block| BlockId(block.block_id)).collect();
    assert_eq!(late.len(), 5);
    let deadline = driver.scheduler.next_wakeup().expect("nobody waits for ever");
    driver.now = Millis(deadline.0 - 1);
    assert!(driver.step().is_none(), "a moment before it still waits");
    driver.now = deadline;
    let plans = driver.run();
    assert_eq!(driver.started(2).map(|(cached, _)| cached), Some(0));
    assert_eq!(driver.output(2).len(), 2);
    let used = plans.iter().flat_map(|plan| &plan.chunks).flat_map(|chunk| &chunk.new_block_ids);
    assert!(used.clone().count() >= 6 && used.into_iter().all(|block| !late.contains(&BlockId(*block))));
    let stats = driver.scheduler.stats();
    assert_eq!((stats.restores_given_up, stats.blocks_late, stats.blocks_held), (1, 5, 5));
    assert_eq!(driver.scheduler.next_wakeup(), None, "nobody waits for what is late");
    // No other sequence reads from the disk meanwhile.
    driver.submit(request(3, other.clone(), 1));
    assert!(driver.run().iter().all(|plan| plan.restores.is_empty()));
    assert_eq!(driver.started(3).map(|(cached, _)| cached), Some(0));
    assert_eq!(driver.scheduler.stats().restores_declined, 1);
    // In the end the disk answers. Its blocks are no longer needed, and the pool is complete again.
    driver.end_restores(usize::MAX);
    let stats = driver.scheduler.stats();
    assert_eq!((stats.blocks_late, stats.blocks_held, stats.unexpected_results), (0, 0, 0));
    driver.restart_shard();
    driver.submit(request(4, other, 1));
    assert_eq!(driver.step().expect("a plan").restores.len(), 1, "and the store is read again");
}

#[test]
fn a_hung_read_of_an_aborted_sequence_is_abandoned_too() {
    let (mut driver, prompt) = after_a_kill();
    driver.submit(request(2, prompt, 2));
    driver.step();
    driver.handle(Event::Abort(SequenceId(2)));
    driver.now = driver.scheduler.next_wakeup().expect("it is given up, too");
    driver.run();
    let stats = driver.scheduler.stats();
    assert_eq!((stats.restores_given_up, stats.blocks_late, stats.blocks_held), (1, 5, 5));
    driver.end_restores(2);
    assert_eq!(driver.scheduler.stats().blocks_held, 0);
}

#[test]
fn a_long_step_is_no_reason_to_give_up() {
    let (mut driver, prompt) = after_a_kill();
    driver.submit(request(2, prompt, 2));
    driver.step();
    driver.submit(request(3, text(5, 9), 3));
    driver.plan().expect("the other one computes");
    driver.now = driver.scheduler.next_wakeup().expect("the restore has a limit").plus(60_000);
    assert!(driver.plan().is_none_or(|plan| plan.starts.is_empty()), "its outcome may come with this step");
    driver.acknowledge();
    driver.end_restores(usize::MAX);
    driver.run();
    assert_eq!(driver.started(2).map(|(cached, _)| cached), Some(5 * BLOCK));
    assert_eq!(driver.scheduler.stats().restores_given_up, 0);
}

#[test]
fn a_restore_whose_blocks_are_needed_is_not_abandoned() {
    let limits = ShardLimits { num_blocks: 10, ..LIMITS };
    let mut driver = Driver::new(SchedulerConfig::default(), limits).with_store(32);
    let prompt = text(1, 22);
    driver.submit(request(1, prompt.clone(), 1));
    driver.run();
    driver.restart_shard();
    driver.submit(request(2, prompt, 1));
    driver.step();
    driver.now = driver.scheduler.next_wakeup().expect("the restore has a limit");
    assert!(driver.step().is_none(), "five blocks are late, and six are needed");
    assert_eq!((driver.scheduler.next_wakeup(), driver.scheduler.stats().restores_given_up), (None, 0));
    driver.end_restores(usize::MAX);
    driver.run();
    assert_eq!(driver.started(2).map(|(cached, _)| cached), Some(5 * BLOCK));
}

#[test]
fn a_removed_blocks_slot_is_given_to_nobody_before_the_shard_has_emptied_it() {
    let mut driver = driver();
    driver.submit(request(1, text(1, 22), 2));
    driver.run();
    // Downloads take all free slots.
    assert_eq!(
        driver.scheduler.lower_tier(LaneId::FIRST).reserve_adopted(&Salt::default(), None, 27).len(),
        27
    );
    let kv = driver.scheduler.kv(LaneId::FIRST).expect("a shard");
    let root = kv
        .walk(NodeId(0), 10, |_| true)
        .nodes
        .into_iter()
        .find(|node| node.parent.is_none())
        .expect("a node");
    assert!(driver.scheduler.nodes(LaneId::FIRST).remove(root.id, root.key).is_some());
    let free = |driver: &mut Driver| {
        driver.scheduler.lower_tier(LaneId::FIRST).reserve_adopted(&Salt::default(), None, usize::MAX)
    };
    assert_eq!(free(&mut driver), [], "the shard knows nothing of the removal");
    let plan = driver.plan().expect("a plan that empties the slots");
    assert_eq!(plan.discards.len(), 5);
    assert_eq!(free(&mut driver), [], "the shard may be emptying them now");
    driver.acknowledge();
    let mut slots = free(&mut driver);
    slots.sort_unstable();
    let mut discards = plan.discards;
    discards.sort_unstable();
    assert_eq!(slots.iter().map(|slot| slot.0).collect::<Vec<_>>(), discards);
}

#[test]
fn a_store_in_other_hands_is_a_miss_and_nothing_is_fetched_to_it() {
    let (mut driver, prompt) = after_a_kill();
    let num_stored = driver.scheduler.stats().store_blocks;
    let now = driver.now;
    driver.store.as_mut().expect("a store").plan.lost_at = Some(now);
    let mut num_restores = 0;
    for id in 2..40 {
        // Every second request has the prompt whose blocks the index names.
        let prompt = if id % 2 == 0 { prompt.clone() } else { text(id, 22) };
        driver.submit(request(id.into(), prompt, 2));
        while driver.ended(id.into()).is_none() {
            driver.step();
            num_restores += driver.restores.len() as u64;
            driver.end_restores(usize::MAX);
        }
        assert_eq!(driver.ended(id.into()), Some(&EndReason::Length));
    }
    assert_eq!(num_restores, 1, "the first block is a miss from then on");
    assert_eq!(driver.scheduler.stats().store_blocks, num_stored - 1);
    assert_eq!(driver.started(38).map(|(cached, _)| cached), Some(21), "the pool has the prompt");
    let cold = text(50, 22);
    let coverage = |driver: &mut Driver| {
        driver.scheduler.lower_tier(LaneId::FIRST).coverage(&Salt::default(), &cold, &[])
    };
    assert_eq!(coverage(&mut driver), None, "blocks could not be read back");

    // A disk that was full is used again once a write succeeds.
    driver.store.as_mut().expect("a store").plan.lost_at = None;
    driver.submit(request(51, text(44, 22), 2));
    driver.run();
    assert!(coverage(&mut driver).is_some());
}
