//! Requests that crash the shard again and again, and the losses for which they are to blame.

use crate::sim::driver::{Driver, LIMITS};
use crate::sim::scenario::request;
use trunkline_scheduler::poison::{MAX_POISONS, POISON_MS};
use trunkline_scheduler::*;

/// A change of a request.
type Change = fn(&mut SequenceRequest);

fn driver() -> Driver {
    Driver::new(SchedulerConfig::default(), LIMITS)
}

fn prompt(of: u32) -> Vec<u32> {
    vec![of % 50, of / 50 % 50, of / 2_500 % 50, 7]
}

/// Loses the shard while it computes the next step.
fn crash(driver: &mut Driver) {
    driver.plan().expect("something is computed");
    driver.restart_shard();
}

/// Submits a request and crashes the shard until it is convicted.
fn convict(driver: &mut Driver, request: SequenceRequest) {
    let id = request.id;
    driver.submit(request);
    crash(driver);
    crash(driver);
    let reason = driver.ended(id.0);
    let Some(EndReason::Failed(error)) = reason else { panic!("{reason:?}") };
    assert_eq!(error.code, SequenceErrorCode::CrashedShard);
}

/// Answers one request, so that the shard has done useful work.
fn answer(driver: &mut Driver, id: u64) {
    driver.submit(request(id, vec![1, 2, 3], 1));
    driver.run();
    assert_eq!(driver.ended(id), Some(&EndReason::Length));
}

/// Returns the losses that count toward the launcher's giving up, of `num_losses`.
fn num_counted(driver: &Driver, num_losses: u64) -> u64 {
    num_losses - driver.scheduler.stats().excused_losses
}

#[test]
fn a_convicted_request_is_refused_for_ten_minutes() {
    let mut driver = driver();
    convict(&mut driver, request(1, prompt(1), 9));
    driver.now = Millis(1_000);
    let retried = |id: u64| request(id, prompt(1), 9);
    driver.submit(retried(2));
    let for_ms = POISON_MS - 1_000;
    assert_eq!(driver.rejection(2), Some((&RejectReason::Poison { for_ms }, None)));
    assert_eq!(driver.scheduler.stats().rejected_poison, 1);

    // These change nothing about the computation of a position.
    let noise: [(&str, Change); 7] = [
        ("seed and choice", |asked| (asked.sampling.seed, asked.sampling.choice) = (99, 3)),
        ("length", |asked| asked.max_new_tokens = 10),
        ("cache salt", |asked| asked.salt = asked.salt.clone().with_cache_salt("another")),
        ("end tokens", |asked| asked.sampling.end_token_ids = vec![3]),
        ("priority", |asked| asked.priority = Priority::Low),
        ("deadline", |asked| asked.deadline = Some(Millis(500_000))),
        ("retention", |asked| asked.retention.pinned_ms = Some(9)),
    ];
    for (id, (what, change)) in (10..).zip(noise) {
        let mut asked = retried(id);
        change(&mut asked);
        driver.submit(asked);
        assert!(matches!(driver.rejection(id), Some((RejectReason::Poison { .. }, None))), "{what}");
    }
    // These ask for something else.
    let changes: [(&str, Change); 5] = [
        ("prompt", |asked| asked.token_ids.push(8)),
        ("temperature", |asked| asked.sampling.temperature = 0.5),
        ("biases", |asked| asked.sampling.logit_bias = vec![(1, 2.0)]),
        ("scores", |asked| asked.sampling.prompt_logprobs = Some(0)),
        ("tenant", |asked| asked.salt = Salt::of_tenant("another")),
    ];
    for (id, (what, change)) in (20..).zip(changes) {
        let mut asked = retried(id);
        change(&mut asked);
        driver.submit(asked);
        assert_eq!(driver.rejection(id), None, "{what}");
        driver.handle(Event::Abort(SequenceId(id)));
    }

    driver.now = Millis(POISON_MS);
    driver.submit(retried(30));
    assert_eq!(driver.rejection(30), None, "the time is over");
    driver.run();
    assert_eq!(driver.ended(30), Some(&EndReason::Length));
}

#[test]
fn equal_requests_end_with_the_convicted_one() {
    let mut driver = driver();
    let equal = |id: u64| request(id, prompt(1), 9);
    (1..=3).for_each(|id| driver.submit(equal(id)));
    driver.submit(request(4, prompt(2), 9));
    crash(&mut driver);
    driver.submit(equal(5));
    crash(&mut driver);
    for id in 1..=3 {
        assert!(matches!(driver.ended(id), Some(EndReason::Failed(_))), "choice {id} of the request");
    }
    assert!(matches!(driver.rejection(5), Some((RejectReason::Poison { .. }, None))), "one that never ran");
    assert_eq!(driver.scheduler.stats().convictions, 1);
    driver.run();
    assert_eq!(driver.ended(4), Some(&EndReason::Length));
    assert_eq!(num_counted(&driver, 2), 0);
}

#[test]
fn as_many_convictions_are_remembered_as_the_limit_says() {
    let mut driver = driver();
    let number = MAX_POISONS as u64;
    for id in 0..=number {
        driver.now = driver.now.plus(1);
        convict(&mut driver, request(id, prompt(id as u32), 9));
    }
    let mut ask = |of: u64| {
        driver.submit(request(10_000 + of, prompt(of as u32), 9));
        driver.rejection(10_000 + of).is_some()
    };
    assert_eq!([ask(0), ask(1), ask(number)], [false, true, true], "the oldest was forgotten");
}

#[test]
fn losses_by_convicted_requests_do_not_count() {
    let mut driver = driver();
    // One after the other, while nobody else asks for anything.
    (1..=20).for_each(|id| convict(&mut driver, request(id, prompt(id as u32), 9)));
    assert_eq!(num_counted(&driver, 40), 0);
    // Several at once beside one that is innocent: each costs one loss more.
    (21..=26).for_each(|id| driver.submit(request(id, prompt(id as u32), 9)));
    for num_losses in 41..48 {
        crash(&mut driver);
        assert!(num_counted(&driver, num_losses) <= 1);
    }
    assert_eq!(driver.scheduler.stats().convictions, 26);
    assert_eq!(num_counted(&driver, 47), 0);
}

#[test]
fn losses_without_a_cause_count() {
    let mut driver = driver();
    driver.submit(request(1, prompt(1), 30));
    crash(&mut driver);
    // The sequence is cleared and goes on.
    driver.run();
    assert_eq!(driver.ended(1), Some(&EndReason::Length));
    driver.restart_shard();
    assert_eq!(num_counted(&driver, 2), 2);
}

#[test]
fn a_shard_that_crashes_on_everything_is_excused_for_ten_minutes_only() {
    let mut driver = driver();
    answer(&mut driver, 1);
    let mut id = 2;
    let mut lose = |driver: &mut Driver, minutes: u64| {
        for _ in 0..minutes {
            driver.now = driver.now.plus(60_000);
            convict(driver, request(id, prompt(id as u32), 9));
            id += 1;
        }
    };
    // The server was idle before for longer than that.
    driver.now = Millis(3_600_000);
    lose(&mut driver, 10);
    assert_eq!(num_counted(&driver, 20), 0);
    lose(&mut driver, 5);
    assert_eq!(num_counted(&driver, 30), 10);
    answer(&mut driver, 999);
    lose(&mut driver, 3);
    assert_eq!(num_counted(&driver, 36), 10, "an answer shows that the shard works");
}

#[test]
fn a_request_that_ends_before_it_is_convicted_is_refused_in_the_end() {
    type End = fn(&mut Driver, SequenceId);
    let endings: [(&str, End); 3] = [
        ("its client leaves after the loss", |driver, id| {
            crash(driver);
            driver.handle(Event::Abort(id));
        }),
        ("its client has left at the loss", |driver, id| {
            driver.plan().expect("a step");
            driver.handle(Event::Abort(id));
            driver.restart_shard();
        }),
        ("it expires as a suspect", |driver, id| {
            crash(driver);
            driver.now = driver.now.plus(100);
            assert!(driver.plan().is_none());
            assert_eq!(driver.ended(id.0), Some(&EndReason::DeadlineExceeded));
        }),
    ];
    for (what, end) in endings {
        let mut driver = driver();
        let expires = what.contains("expires");
        for id in 1..=2 {
            let deadline = expires.then(|| driver.now.plus(100));
            driver.submit(SequenceRequest { deadline, ..request(id, prompt(1), 9) });
            assert_eq!(driver.rejection(id), None, "{what}");
            end(&mut driver, SequenceId(id));
            let is_excused = expires || num_counted(&driver, id) == 0;
            assert!(is_excused, "{what}: a client cannot use up the launcher's patience");
        }
        driver.submit(request(3, prompt(1), 9));
        let reason = driver.rejection(3);
        assert!(matches!(reason, Some((RejectReason::Poison { .. }, None))), "{what}: {reason:?}");
    }
}

#[test]
fn an_answered_request_is_not_blamed_for_its_last_step() {
    let mut driver = driver();
    for id in 1..=3 {
        driver.submit(request(id, prompt(1), 9));
        driver.plan().expect("a step");
        driver.plan().expect("a step ahead");
        driver.acknowledge();
        // A stop string ends it.
        driver.handle(Event::Finish(SequenceId(id)));
        driver.restart_shard();
        assert_eq!(driver.ended(id), Some(&EndReason::Finished));
    }
    driver.submit(request(4, prompt(1), 9));
    assert_eq!(driver.rejection(4), None);
}

/// Returns the sequences, by their sampling seeds, that the steps of the next `count` plans have.
fn sequences_of_steps(driver: &mut Driver, count: usize) -> Vec<Vec<u64>> {
    let names: Vec<u64> = driver.known.keys().copied().collect();
    let steps = (0..count).map(|_| {
        let plan = driver.plan().expect("there is work");
        driver.now = driver.now.plus(1);
        let has = names.iter().filter(|&&seed| driver.shard.has(&plan, seed)).copied().collect();
        driver.acknowledge();
        has
    });
    steps.collect()
}

/// Loses the shard twice while it computes the sequences 1 to `last`, each of which is cleared in between.
fn lose_twice(driver: &mut Driver, last: u64) {
    for _ in 0..2 {
        driver.plan().expect("a step");
        driver.restart_shard();
        // All are cleared, one after the other. The cleared ones have every second step.
        sequences_of_steps(driver, 3 * last as usize);
    }
}

#[test]
fn separated_sequences_have_half_of_the_steps() {
    let mut driver = driver();
    (1..=4).for_each(|id| driver.submit(request(id, prompt(id as u32), 50)));
    lose_twice(&mut driver, 4);
    assert_eq!(num_counted(&driver, 2), 0);
    (5..=6).for_each(|id| driver.submit(request(id, prompt(id as u32), 50)));
    sequences_of_steps(&mut driver, 1);
    let steps = sequences_of_steps(&mut driver, 8);
    let common = steps.iter().filter(|step| **step == [5, 6]).count();
    assert_eq!(common, 4, "every second step is for those that were not separated: {steps:?}");
    for id in 1..=4 {
        assert!(steps.contains(&vec![id]), "four cells for four sequences: {steps:?}");
    }
    driver.run();
    assert!((1..=6).all(|id| driver.ended(id) == Some(&EndReason::Length)));
}

#[test]
fn equal_requests_of_separated_ones_are_apart_from_the_beginning() {
    let mut driver = driver();
    (1..=2).for_each(|id| driver.submit(request(id, prompt(id as u32), 40)));
    lose_twice(&mut driver, 2);
    driver.run();
    (3..=4).for_each(|id| driver.submit(request(id, prompt(id as u32 - 2), 40)));
    let steps = sequences_of_steps(&mut driver, 6);
    assert!(steps.iter().all(|step| step.len() == 1), "{steps:?}");
    driver.run();

    driver.now = driver.now.plus(POISON_MS);
    (5..=6).for_each(|id| driver.submit(request(id, prompt(id as u32 - 4), 40)));
    let steps = sequences_of_steps(&mut driver, 2);
    assert_eq!(steps, [[5, 6], [5, 6]], "after ten minutes they may share a step again");
}

#[test]
fn a_sequence_that_is_alone_at_four_losses_within_a_minute_is_convicted() {
    for (gap_ms, is_convicted) in [(10_000, true), (30_000, false)] {
        let mut driver = driver();
        driver.submit(request(1, prompt(1), 50));
        for _ in 0..4 {
            crash(&mut driver);
            // It runs by itself past the position of the loss.
            (0..3).for_each(|_| drop(driver.step()));
            driver.now = driver.now.plus(gap_ms);
        }
        assert_eq!(driver.ended(1).is_some(), is_convicted, "{gap_ms} ms between losses");
        assert_eq!(num_counted(&driver, 4), if is_convicted { 0 } else { 4 });
    }
}
