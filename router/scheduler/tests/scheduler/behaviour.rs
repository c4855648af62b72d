//! The scheduler's promises, one for each test, checked step by step against the fake shard.

use std::collections::BTreeMap;

use crate::sim::driver::{Driver, LIMITS};
use crate::sim::scenario::{request, salt};
use crate::sim::shard::{FakeShard, ShardFaults, seed_of};
use trunkline_contract::proto;
use trunkline_scheduler::*;

#[path = "../../examples/one_request.rs"]
mod one_request;

/// The documentation of the scheduler shows this example.
#[test]
fn the_documentations_example_runs() {
    one_request::main();
}

fn driver() -> Driver {
    Driver::new(SchedulerConfig::default(), LIMITS)
}

/// Returns `count` tokens that no other text begins with.
fn text(of: u32, count: u32) -> Vec<u32> {
    (0..count).map(|position| (of * 7 + position * (of + 1)) % 50).collect()
}

#[test]
fn a_long_prompt_adds_no_more_than_its_share_to_a_step_with_decodes() {
    let config = SchedulerConfig { max_prefill_tokens_beside_decodes: 10, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, LIMITS);
    driver.submit(request(1, text(1, 3), 40));
    driver.step();
    driver.submit(request(2, text(2, 100), 2));
    for _ in 0..10 {
        let before = driver.output(1).len();
        let plan = driver.step().unwrap();
        assert_eq!(driver.output(1).len(), before + 1, "the decode goes on in every step");
        assert_eq!(plan.num_tokens(), 11);
    }
    assert_eq!(driver.output(2).len(), 1, "and the prompt is through after its ten chunks");
}

#[test]
fn steps_with_decodes_take_their_target_time_and_others_are_full() {
    // A step of the fake shard takes 0.2 ms and 0.1 ms a token.
    let config = SchedulerConfig { target_step_us: 4_200, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, LIMITS);
    driver.submit(request(1, text(1, 3), 60));
    driver.submit(request(2, text(2, 150), 2));
    assert_eq!(driver.step().unwrap().num_tokens(), 64, "nothing decodes yet");
    let mut sizes = Vec::new();
    for id in 3..6 {
        while driver.output(id - 1).is_empty() {
            sizes.push(driver.step().unwrap().num_tokens());
        }
        driver.submit(request(id, text(id as u32, 100), 2));
    }
    // Its first rows cost as much as the others, unlike those of real backends, so that the fit is off at times.
    assert!(sizes.iter().all(|&size| size <= 50), "{sizes:?}");
    let num_full = sizes.iter().filter(|&&size| size > 36).count();
    assert_eq!(num_full, 6, "each prompt needs two full steps: {sizes:?}");
}

#[test]
fn a_target_that_no_step_can_meet_leaves_room_for_efficient_prefill() {
    let config = SchedulerConfig { target_step_us: 1, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, LIMITS);
    driver.submit(request(1, text(1, 3), 60));
    driver.step();
    driver.submit(request(2, text(2, 100), 2));
    for _ in 0..6 {
        let num_left = 1 + u64::from(MIN_PREFILL_TOKENS);
        assert_eq!(driver.step().unwrap().num_tokens(), num_left);
    }
}

#[test]
fn a_prompt_is_admitted_while_a_step_has_tokens_or_places_for_prefills_left() {
    // A step has 64 tokens. Each row has the number of prefills that may share a step, the tokens of each prompt, and
    // the number of five prompts that are admitted.
    for (max_concurrent_prefills, num_tokens, num_admitted) in [
        // The first prompt fills the step to the last token.
        (1, 64, 1),
        // One token is left for the second.
        (1, 63, 2),
        (1, 32, 2),
        (1, 31, 3),
        // A full step is shared by this many prompts and no more.
        (2, 64, 2),
        (3, 64, 3),
        // Short prompts are admitted beyond that number while tokens are left.
        (2, 12, 5),
    ] {
        let config = SchedulerConfig { max_concurrent_prefills, ..SchedulerConfig::default() };
        let mut driver = Driver::new(config, LIMITS);
        (1..=5).for_each(|id| driver.submit(request(id, text(id as u32, num_tokens), 4)));
        driver.plan().expect("there are prompts");
        let case = (max_concurrent_prefills, num_tokens);
        assert_eq!(driver.scheduler.stats().num_running, num_admitted, "{case:?}");
    }
}

#[test]
fn prompts_that_are_half_computed_keep_the_next_one_waiting() {
    let config = SchedulerConfig { max_concurrent_prefills: 2, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, LIMITS);
    (1..=3).for_each(|id| driver.submit(request(id, text(id as u32, 72), 4)));
    // The first two prompts need more than two steps of 64 tokens. After the second step only one is left.
    for _ in 0..2 {
        assert_eq!(driver.plan().expect("there are prompts").num_tokens(), 64);
        assert_eq!(driver.scheduler.stats().num_running, 2);
        driver.acknowledge();
    }
    driver.plan().expect("there are prompts");
    assert_eq!(driver.scheduler.stats().num_running, 3);
}

#[test]
fn a_short_prompt_does_not_wait_behind_a_long_one() {
    let mut driver = driver();
    driver.submit(request(1, text(1, 200), 2));
    driver.step();
    driver.submit(request(2, text(2, 6), 2));
    driver.step();
    assert_eq!((driver.output(1).len(), driver.output(2).len()), (0, 1));
}

#[test]
fn a_short_prompt_takes_two_steps_beside_a_long_one_and_streams() {
    // A step of the fake shard takes 0.2 ms and 0.1 ms a token.
    let config = SchedulerConfig { target_step_us: 4_200, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, LIMITS);
    (1..=2).for_each(|id| driver.submit(request(id, text(id as u32, 4), 60)));
    (0..4).for_each(|_| assert!(driver.step().is_some()));
    driver.submit(request(3, text(3, 150), 2));
    assert!(driver.step().is_some());
    driver.submit(request(4, text(4, 40), 2));
    let sizes: Vec<u32> = driver.step().unwrap().chunks.iter().map(|chunk| chunk.num_tokens).collect();
    assert_eq!(sizes.iter().filter(|&&size| size > 1).count(), 2, "both prompts make progress: {sizes:?}");
    driver.step();
    assert_eq!(driver.output(3).len(), 0);
    assert!(!driver.output(4).is_empty());
}

#[test]
fn a_prompt_that_arrives_during_a_long_step_is_in_the_next_one() {
    // A step of the fake shard takes 0.2 ms and 0.1 ms a token: 40.2 ms if it is full.
    let limits = ShardLimits { num_blocks: 512, max_step_tokens: 400, ..LIMITS };
    let mut driver = Driver::new(SchedulerConfig::default(), limits);
    driver.submit(request(1, text(1, 1_400), 2));
    assert!(driver.step().is_some(), "the first step teaches what a step takes");
    let began = driver.now;
    assert_eq!(driver.plan().unwrap().num_tokens(), 400);
    assert!(driver.plan().is_none(), "the next step is not planned yet");
    let planned_at = driver.scheduler.next_wakeup().unwrap();
    assert!((28..=32).contains(&planned_at.since(began)), "a quarter of the step is left");

    // A result of no step in flight changes nothing.
    driver.now = began.plus(5);
    let unexpected =
        StepResult { step_id: 99, sequences: Vec::new(), device_time_us: 1_000, draft_time_us: 0 };
    driver.handle(Event::StepResult(LaneId::FIRST, unexpected));
    assert_eq!(driver.scheduler.next_wakeup(), Some(planned_at));
    driver.now = Millis(planned_at.0 - 1);
    driver.submit(request(2, text(2, 20), 2));
    assert!(driver.plan().is_none());
    driver.now = planned_at;
    assert_eq!(driver.plan().unwrap().chunks.len(), 2, "both prompts are in it");
    assert_eq!(driver.scheduler.next_wakeup(), None, "the shard has enough to do");
    // The result of the first step comes early, and the second one begins.
    driver.acknowledge();
    assert!(driver.scheduler.next_wakeup().is_some_and(|at| at > driver.now));
    driver.acknowledge();
    assert!(!driver.output(2).is_empty());
    assert!(driver.plan().is_some(), "nothing is in flight, so it is not too early");
}

#[test]
fn short_steps_are_planned_ahead_at_once() {
    let mut driver = driver();
    driver.submit(request(1, text(1, 200), 2));
    assert!(driver.step().is_some());
    assert!(driver.plan().is_some(), "a full step takes 6.6 ms");
    assert!(driver.plan().is_some());
}

#[test]
fn steps_grow_for_a_prompt_that_would_miss_its_time_to_first_token() {
    // A step of the fake shard takes 0.2 ms and 0.1 ms a token, and the driver's clock goes on by 1 ms.
    let num_steps = |target_ttft_ms: u32, deadline_ms: Option<u64>, priority: Priority| {
        let config = SchedulerConfig { target_step_us: 2_200, target_ttft_ms, ..SchedulerConfig::default() };
        let mut driver = Driver::new(config, LIMITS);
        driver.submit(request(1, text(1, 60), 40));
        (0..8).for_each(|_| assert!(driver.step().is_some()));
        let deadline = deadline_ms.map(|after_ms| driver.now.plus(after_ms));
        driver.submit(SequenceRequest { deadline, priority, ..request(2, text(2, 150), 2) });
        (1..).find(|_| {
            driver.step();
            !driver.output(2).is_empty()
        })
    };
    let without = num_steps(0, None, Priority::Normal);
    assert!(num_steps(15, None, Priority::Normal) < without);
    assert!(num_steps(0, Some(15), Priority::Normal) < without);
    assert_eq!(num_steps(60_000, None, Priority::Normal), without, "there is time enough");
    assert_eq!(num_steps(1, None, Priority::Normal), without, "it is late anyway");
    assert_eq!(num_steps(15, None, Priority::Low), without, "the lowest class has no goal");
}

#[test]
fn a_decode_is_planned_before_its_token_is_known_and_never_past_the_length() {
    let mut driver = driver();
    driver.submit(request(1, text(1, 5), 3));
    let first = driver.plan().unwrap();
    let second = driver.plan().unwrap();
    assert_eq!(
        (first.chunks[0].first_position, first.chunks[0].num_tokens, first.chunks[0].sample),
        (0, 5, true)
    );
    assert_eq!((second.chunks[0].first_position, second.chunks[0].num_tokens), (5, 1));
    assert!(driver.plan().is_none(), "two plans in flight are the most");
    driver.acknowledge();
    assert_eq!(driver.plan().unwrap().chunks[0].first_position, 6);
    driver.acknowledge();
    assert!(driver.plan().is_none(), "all three tokens are in flight");
    driver.acknowledge();
    assert_eq!((driver.output(1).len(), driver.ended(1)), (3, Some(&EndReason::Length)));
    let last = driver.plan().unwrap();
    assert_eq!((last.ends.len(), last.chunks.len()), (1, 0), "the shard is told of the end");
}

#[test]
fn a_token_past_the_end_is_dropped_and_its_blocks_wait_for_its_step() {
    let mut driver = driver();
    let mut asked = request(1, text(1, 5), 20);
    asked.sampling.end_token_ids = (0..50).collect();
    driver.submit(asked);
    driver.plan();
    driver.plan();
    driver.acknowledge();
    assert_eq!(driver.ended(1), Some(&EndReason::EndToken));
    assert_eq!(driver.scheduler.stats().blocks_held, 2, "a step in flight writes them");
    driver.acknowledge();
    assert_eq!(driver.output(1).len(), 1);
    assert_eq!(driver.scheduler.stats().blocks_held, 0);
}

#[test]
fn an_abort_frees_the_blocks_with_the_steps_in_flight() {
    let mut driver = driver();
    driver.submit(request(1, text(1, 200), 5));
    driver.plan();
    driver.plan();
    driver.handle(Event::Abort(SequenceId(1)));
    assert_eq!(driver.ended(1), Some(&EndReason::Aborted));
    assert!(driver.scheduler.stats().blocks_held > 0);
    driver.acknowledge();
    driver.acknowledge();
    let stats = driver.scheduler.stats();
    assert_eq!((stats.blocks_held, stats.blocks_cached), (0, 32), "128 tokens were computed and stay");
    driver.submit(request(2, text(1, 200), 1));
    driver.step();
    assert_eq!(driver.started(2).unwrap().0, 128);
}

#[test]
fn a_common_prefix_is_computed_once() {
    let mut driver = driver();
    for id in 1..=5 {
        let mut prompt = text(1, 160);
        prompt.extend(text(id, 3));
        driver.submit(request(id.into(), prompt, 1));
    }
    driver.run();
    let stats = driver.scheduler.stats();
    assert_eq!(stats.scheduled_tokens, 160 + 5 * 3, "nothing is computed twice");
    assert_eq!(stats.prefix_waits, 4);
    assert_eq!(stats.prefix_hit_tokens, 4 * 160);
    assert!((2..=5).all(|id| driver.started(id).unwrap().0 == 160));
}

#[test]
fn a_parked_sequence_goes_on_when_the_other_one_leaves() {
    let mut driver = driver();
    driver.submit(request(1, text(1, 200), 1));
    driver.step();
    driver.submit(request(2, text(1, 180), 1));
    driver.step();
    assert_eq!((driver.scheduler.stats().prefix_waits, driver.started(2)), (1, None));
    driver.handle(Event::Abort(SequenceId(1)));
    driver.run();
    assert_eq!(driver.started(2).unwrap().0, 128);
    assert_eq!(driver.ended(2), Some(&EndReason::Length));
}

#[test]
fn no_sequence_parks_on_a_lower_class_or_another_salt() {
    let mut driver = driver();
    driver.submit(SequenceRequest { priority: Priority::Low, ..request(1, text(1, 100), 1) });
    driver.step();
    driver.submit(SequenceRequest { priority: Priority::High, ..request(2, text(1, 90), 1) });
    driver.step();
    assert_eq!(driver.started(2), Some((64, 0)));
    driver.run();
    driver.submit(request(4, text(5, 100), 1));
    driver.step();
    driver.submit(SequenceRequest { salt: salt(1), ..request(3, text(5, 90), 1) });
    driver.step();
    assert_eq!(driver.started(3), Some((0, 0)));
    assert_eq!(driver.scheduler.stats().prefix_waits, 0);
}

#[test]
fn the_next_turn_of_a_conversation_hits_prompt_and_output() {
    let mut driver = driver();
    let mut prompt = text(1, 10);
    driver.submit(request(1, prompt.clone(), 8));
    driver.run();
    prompt.extend(driver.output(1));
    let num_computed = prompt.len() as u32 - 1;
    prompt.extend(text(3, 9));
    driver.submit(request(2, prompt.clone(), 1));
    let plan = driver.step().unwrap();
    assert_eq!(
        driver.started(2).unwrap().0,
        num_computed,
        "all but the last token, which was never computed"
    );
    assert_eq!(plan.copies.len(), 1, "the partly filled block is copied");
    assert_eq!(num_computed % LIMITS.block_size, plan.copies[0].num_tokens);
    driver.submit(SequenceRequest { salt: salt(1), ..request(3, prompt, 1) });
    driver.step();
    assert_eq!(driver.started(3).unwrap().0, 0, "another salt hits nothing");
}

#[test]
fn out_of_blocks_the_newest_of_the_lowest_class_is_preempted_and_writes_the_same_text() {
    let limits = ShardLimits { num_blocks: 20, ..LIMITS };
    let mut alone = BTreeMap::new();
    let asked = |id: u64| {
        let mut asked = request(id, text(id as u32, 6), 24);
        asked.priority = if id == 2 { Priority::Low } else { Priority::Normal };
        asked
    };
    for id in 1..=3 {
        let mut driver = Driver::new(SchedulerConfig::default(), limits);
        driver.submit(asked(id));
        driver.run();
        alone.insert(id, driver.output(id));
    }
    let mut driver = Driver::new(SchedulerConfig::default(), limits);
    for id in 1..=3 {
        driver.submit(asked(id));
    }
    let mut wire_ids = BTreeMap::new();
    let mut resumed = Vec::new();
    while let Some(plan) = driver.step() {
        for start in &plan.starts {
            let names = wire_ids.entry(seed_of(start)).or_insert_with(Vec::new);
            names.push(start.sequence_id);
            if names.len() > 1 {
                assert_eq!(start.num_prompt_tokens, 6, "the prompt stays the prompt");
                assert!(start.token_ids.len() > 6, "the output so far goes with it");
                let chunk = plan.chunks.iter().find(|chunk| chunk.sequence_id == start.sequence_id).unwrap();
                assert!(chunk.first_position > 0, "it resumes by prefix hit");
                resumed.push(seed_of(start));
            }
        }
    }
    assert_eq!(resumed.first(), Some(&2), "the lowest class goes first: {resumed:?}");
    assert!(!resumed.contains(&1), "the oldest never: {resumed:?}");
    for id in 1..=3 {
        assert_eq!(driver.output(id), alone[&id]);
    }
    assert!(driver.scheduler.stats().preemptions >= 1);
}

#[test]
fn a_higher_class_goes_first_and_takes_a_place() {
    let config = SchedulerConfig { max_running_sequences: 1, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, LIMITS);
    let of_class = |id, priority| SequenceRequest { priority, ..request(id, text(id as u32, 5), 6) };
    driver.submit(of_class(1, Priority::Low));
    driver.step();
    driver.submit(of_class(2, Priority::Low));
    driver.submit(of_class(3, Priority::Normal));
    driver.submit(of_class(4, Priority::High));
    driver.run();
    let ended = driver.updates.iter().filter_map(|update| match update {
        Update::Ended { id, .. } => Some(id.0),
        _ => None,
    });
    assert_eq!(ended.collect::<Vec<_>>(), [4, 3, 1, 2]);
    assert_eq!(driver.output(1).len(), 6);
}

#[test]
fn cached_prompts_go_first_within_a_window() {
    let config = SchedulerConfig {
        max_running_sequences: 1,
        cached_first_window_ms: 50,
        ..SchedulerConfig::default()
    };
    let mut driver = Driver::new(config, LIMITS);
    driver.submit(request(0, text(1, 40), 1));
    driver.run();
    driver.submit(request(1, text(2, 40), 30));
    driver.step();
    let submitted_at = driver.now;
    driver.submit(request(2, text(3, 40), 1));
    // Requests with the cached prompt keep arriving.
    let mut id = 100;
    while driver.started(2).is_none() {
        driver.submit(request(id, text(1, 40), 2));
        id += 1;
        driver.step();
        assert!(driver.now.since(submitted_at) < 200, "the uncached one is starved");
    }
    let num_before = (100..id).filter(|&id| driver.started(id).is_some()).count();
    assert!(num_before > 5, "cached ones went before it: {num_before}");
    let (_, queued_ms) = driver.started(2).unwrap();
    // The place is free after 30 ms. Then the requests that arrived within 50 ms run for two steps each.
    assert!(queued_ms > 50 && queued_ms < 135, "for no longer than the window: {queued_ms}");
}

#[test]
fn a_full_queue_says_so_with_numbers_and_an_honest_time() {
    let config =
        SchedulerConfig { max_running_sequences: 1, max_queued_requests: 2, ..SchedulerConfig::default() };
    let mut driver = Driver::new(config, LIMITS);
    for id in 0..3 {
        driver.submit(request(id, text(id as u32, 4), 10));
        driver.run();
    }
    for id in 10..13 {
        driver.submit(request(id, text(id as u32, 4), 10));
        if id == 10 {
            driver.step();
        }
    }
    driver.now = driver.now.plus(5);
    driver.submit(request(20, text(20, 4), 10));
    driver.submit(request(21, text(21, 4), 10));
    let (reason, first) = driver.rejection(20).unwrap();
    let full = RejectReason::QueueFull { num_waiting: 2, max_queued_requests: 2, oldest_wait_ms: 5 };
    assert_eq!(*reason, full);
    let (first, second) = (first.unwrap(), driver.rejection(21).unwrap().1.unwrap());
    assert_eq!((first, second), (100, 100), "ten steps of a millisecond, but at least the minimum");
    assert_eq!(driver.scheduler.stats().rejected_queue_full, 2);
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_and_one_that_passes_ends_it() {
    let mut driver = Driver::new(SchedulerConfig { max_running_sequences: 1, ..Default::default() }, LIMITS);
    let until =
        |id, ms| SequenceRequest { deadline: Some(Millis(ms)), ..request(id, text(id as u32, 4), 100) };
    driver.submit(until(1, 30));
    driver.submit(until(2, 20));
    assert_eq!(driver.scheduler.next_wakeup(), Some(Millis(20)));
    driver.run();
    assert_eq!(driver.ended(2), Some(&EndReason::DeadlineExceeded), "in the queue");
    assert_eq!(driver.ended(1), Some(&EndReason::DeadlineExceeded), "and while it runs");
    assert_eq!((driver.started(2), driver.output(1).len()), (None, 30));
    assert_eq!(driver.scheduler.stats().blocks_held, 0);
    driver.submit(request(3, text(3, 4), 100));
    driver.run();
    let now = driver.now.0;
    driver.submit(request(4, text(4, 4), 100));
    driver.step();
    driver.submit(until(5, now + 60));
    let (reason, retry_after_ms) = driver.rejection(5).unwrap();
    let RejectReason::DeadlineUnreachable { predicted_wait_ms, deadline_in_ms } = *reason else {
        panic!("{reason:?}");
    };
    assert_eq!((predicted_wait_ms, deadline_in_ms), (100, 59), "a run took 100 ms, and one is ahead");
    assert_eq!(retry_after_ms, Some(100));
}

#[test]
fn requests_that_never_fit_are_rejected_and_exact_fits_are_served() {
    let limits = ShardLimits { num_blocks: 3, ..LIMITS };
    let mut driver = Driver::new(SchedulerConfig::default(), limits);
    driver.submit(request(1, text(1, 8), 6));
    let reason = RejectReason::TooLong { prompt_tokens: 8, max_new_tokens: 6, max_total_tokens: 13 };
    assert_eq!(driver.rejection(1), Some((&reason, None)));
    driver.submit(request(2, text(1, 8), 5));
    driver.run();
    assert_eq!((driver.ended(2), driver.output(2).len()), (Some(&EndReason::Length), 5));
    driver.submit(request(3, vec![], 5));
    driver.submit(request(4, vec![50], 5));
    driver.submit(request(5, vec![49], 0));
    assert!(matches!(driver.rejection(3), Some((RejectReason::Invalid { .. }, None))));
    assert!(matches!(driver.rejection(4), Some((RejectReason::Invalid { .. }, None))));
    assert_eq!(driver.ended(5), Some(&EndReason::Length));
}

#[test]
fn a_smaller_shard_refuses_what_waited_for_a_larger_one() {
    let mut driver = driver();
    driver.handle(Event::ShardLost { lane: LaneId::FIRST, may_return: true });
    driver.submit(request(1, text(1, 60), 60));
    driver.submit(request(2, text(2, 6), 2));
    let limits = ShardLimits { num_blocks: 3, ..LIMITS };
    driver.shard = FakeShard::new(limits, ShardFaults::default(), 512);
    driver.handle(Event::ShardReady(LaneId::FIRST, limits));
    assert!(matches!(driver.rejection(1), Some((RejectReason::TooLong { max_total_tokens: 13, .. }, None))));
    assert_eq!(driver.run()[0].step_id, 1, "a new stream counts from 1");
    assert_eq!(driver.ended(2), Some(&EndReason::Length));
}

#[test]
fn a_sequence_that_fails_fails_alone_and_leaves_nothing_to_hit() {
    let mut driver = driver();
    driver.submit(request(1, text(1, 8), 4));
    driver.submit(request(2, text(2, 8), 4));
    let plan = driver.plan().unwrap();
    driver.plan();
    let error =
        proto::SequenceError { code: proto::SequenceErrorCode::NotFinite.into(), message: "nan".to_owned() };
    let failed = plan.chunks[0].sequence_id;
    for result in &mut driver.results {
        let outcome = result.sequences.iter_mut().find(|outcome| outcome.sequence_id == failed).unwrap();
        outcome.outcome = Some(Outcome::Error(error.clone()));
    }
    driver.acknowledge();
    assert_eq!(driver.ended(1), Some(&EndReason::Failed(error.into())));
    driver.acknowledge();
    driver.run();
    assert_eq!((driver.ended(2), driver.output(2).len()), (Some(&EndReason::Length), 4));
    driver.submit(request(3, text(1, 8), 1));
    driver.step();
    assert_eq!(driver.started(3).unwrap().0, 0);
}

#[test]
fn end_tokens_go_to_the_shard_with_the_sampling_parameters() {
    let mut driver = driver();
    let mut asked = request(1, text(1, 3), 2);
    asked.sampling.end_token_ids = vec![7, 9];
    asked.ignore_eos = true;
    driver.submit(asked);
    let plan = driver.step().unwrap();
    assert_eq!(plan.starts[0].sampling.as_ref().unwrap().end_token_ids, [7, 9]);
}

#[test]
fn the_hot_prefix_survives_eviction() {
    let limits = ShardLimits { num_blocks: 12, ..LIMITS };
    let mut driver = Driver::new(SchedulerConfig::default(), limits);
    let mut hot = text(1, 16);
    driver.submit(request(0, hot.clone(), 1));
    driver.run();
    for id in 1..10 {
        driver.submit(request(id, text(id as u32 + 10, 17), 1));
        driver.run();
        hot.truncate(16);
        hot.push(id as u32);
        driver.submit(request(100 + id, hot.clone(), 1));
        driver.run();
        assert_eq!(driver.started(100 + id).unwrap().0, 16, "the block used last is evicted last");
    }
    assert!(driver.scheduler.stats().evicted_blocks > 20);
}

#[test]
fn a_new_shard_computes_no_prompt_logprobs_that_were_reported() {
    // A step has eight rows of logits, so the prompt takes five steps. The shard is lost after each of them.
    const NUM_PROMPT_TOKENS: u32 = 40;
    for num_steps in 0..8 {
        let mut driver = driver();
        let mut asked = request(1, text(1, NUM_PROMPT_TOKENS), 3);
        asked.sampling.prompt_logprobs = Some(2);
        driver.submit(asked);
        let mut num_rows = 0;
        let mut count = |plan: &StepPlan| {
            let rows =
                plan.chunks.iter().map(|chunk| LogitsRows::of(chunk, NUM_PROMPT_TOKENS - 1).num_scored);
            num_rows += rows.sum::<u32>();
        };
        for _ in 0..num_steps {
            driver.step().iter().for_each(&mut count);
        }
        driver.restart_shard();
        let after = driver.run();
        after.iter().for_each(&mut count);
        assert_eq!(num_rows, NUM_PROMPT_TOKENS - 1, "after {num_steps} steps");
        if (1..5).contains(&num_steps) {
            assert_eq!(after[0].num_tokens(), num_steps * 8, "what was scored is computed in one chunk");
        }
        assert_eq!(driver.ended(1), Some(&EndReason::Length));
    }
}

#[test]
fn prompts_that_start_together_are_spread_over_steps_if_they_are_long() {
    // The prompts share all their blocks, so that each needs only one more token. Without a bound, one plan would carry
    // all their tokens.
    let limits = ShardLimits { num_blocks: 60_000, max_step_sequences: 64, vocab_size: 200_000, ..LIMITS };
    let limits = ShardLimits { block_size: 16, max_step_tokens: 200_000, ..limits };
    let mut driver = Driver::new(SchedulerConfig::default(), limits);
    let prompt: Vec<u32> = (0..150_000).map(|position| 100_000 + position % 99_991).collect();
    (1..=32).for_each(|id| driver.submit(request(id, prompt.clone(), 2)));
    let plans = driver.run();
    assert!((1..=32).all(|id| driver.output(id).len() == 2));
    let started =
        plans.iter().map(|plan| plan.starts.iter().map(|start| start.token_ids.len()).sum::<usize>());
    let most = started.clone().max().unwrap();
    // Ids take three bytes each.
    assert!(3 * most <= 4 << 20, "{most} tokens in the starts of one plan");
    assert!(most > 1_000_000, "but they are not started one by one: {most}");
}
