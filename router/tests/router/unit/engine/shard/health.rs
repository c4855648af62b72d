use std::time::Duration;

use trunkline_base::limits::{Limits, ServerLimits};
use trunkline_engine::shard::{Check, HangWatch, Health};

const SECOND: Duration = Duration::from_secs(1);
const WELL: Check = Check::Answered { step_running: Duration::ZERO, last_step_id: 7 };
const STUCK: Check = Check::Answered { step_running: Duration::from_secs(61), last_step_id: 7 };
const FIRST_STEP: Check = Check::Answered { step_running: Duration::from_secs(61), last_step_id: 0 };

fn watch(hung_shard_factor: u32) -> HangWatch {
    let limits = Limits { hung_shard_factor, ..Limits::default() };
    assert_eq!(limits.stuck_step_timeout, 60 * SECOND);
    HangWatch::new(&ServerLimits::from(limits))
}

/// Takes the same result every second for `seconds` and returns the health after the last.
fn note(watch: &mut HangWatch, check: Check, seconds: u32) -> Health {
    (0..seconds).map(|_| watch.note(check, SECOND)).last().unwrap()
}

#[test]
fn a_silent_or_stuck_shard_hangs_after_the_limit_and_again_after_it() {
    for check in [Check::Silent, STUCK] {
        let mut watch = watch(2);
        assert_eq!(note(&mut watch, check, 119).hangs, 0, "{check:?}");
        assert_eq!(
            note(&mut watch, check, 1),
            Health { last: check, unwell: 120 * SECOND, num_unwell: 120, hangs: 1, ..Health::default() }
        );
        assert_eq!(watch.note(check, Duration::ZERO).hung_for(), 120 * SECOND);
        assert_eq!(note(&mut watch, check, 119).hangs, 1, "{check:?}");
        assert_eq!(note(&mut watch, check, 1).hangs, 2, "{check:?}");
    }
}

#[test]
fn the_limit_follows_steps_that_take_long_and_end() {
    let step = |id, seconds| Check::Answered { step_running: seconds * SECOND, last_step_id: id };
    let mut watch = watch(2);
    // A first step of 100 s, which the limit of first steps allows.
    (1..=100).for_each(|seconds| _ = watch.note(step(0, seconds), SECOND));
    let health = watch.note(step(1, 1), SECOND);
    assert_eq!((health.patience, health.hangs), (400 * SECOND, 0));
    // Later ones may take as long, and one that takes four times as long is stuck.
    for seconds in 2..400 {
        assert_eq!(watch.note(step(1, seconds), SECOND).unwell, Duration::ZERO, "{seconds} s");
    }
    assert_eq!(watch.note(step(1, 401), SECOND).unwell, SECOND);
    // Many short steps forget it.
    (2..12).for_each(|id| _ = watch.note(step(id, 0), SECOND));
    assert_eq!(watch.note(step(12, 61), SECOND).unwell, SECOND);
}

#[test]
fn one_good_check_ends_it_and_a_good_while_forgets_it() {
    let mut watch = watch(2);
    note(&mut watch, Check::Silent, 119);
    note(&mut watch, WELL, 1);
    assert_eq!(note(&mut watch, Check::Silent, 119).hangs, 0);
    note(&mut watch, Check::Silent, 1);
    // The shard is killed and another one loads.
    assert_eq!(note(&mut watch, Check::Away, 300), Health { hangs: 1, ..Health::default() });
    assert_eq!(note(&mut watch, WELL, 119).hangs, 1);
    assert_eq!(note(&mut watch, WELL, 1).hangs, 0);
}

#[test]
fn a_first_step_may_take_ten_times_as_long() {
    let mut watch = watch(2);
    assert_eq!(note(&mut watch, FIRST_STEP, 1199).hangs, 0);
    assert_eq!(note(&mut watch, FIRST_STEP, 1).hangs, 1);
    // A shard that stops answering during its first step keeps that time; an idle one does not.
    note(&mut watch, FIRST_STEP, 1);
    assert_eq!(note(&mut watch, Check::Silent, 1198).hangs, 1);
    note(&mut watch, WELL, 1);
    assert_eq!(note(&mut watch, Check::Silent, 120).hangs, 2);
}

/// While the machine is suspended there are no checks. The step that was running seems to have taken all that time.
#[test]
fn a_suspended_machine_makes_no_shard_hang() {
    let mut watch = watch(2);
    note(&mut watch, WELL, 1);
    assert_eq!(
        watch.note(STUCK, 3600 * SECOND),
        Health { last: STUCK, unwell: 3 * SECOND, num_unwell: 1, ..Health::default() }
    );
}

#[test]
fn hangs_that_are_due_to_requests_are_taken_back() {
    let mut watch = watch(1);
    assert_eq!(note(&mut watch, Check::Silent, 130).hangs, 2);
    watch.excuse(2);
    note(&mut watch, Check::Away, 1);
    assert_eq!(note(&mut watch, Check::Silent, 70).hangs, 1);
    watch.excuse(2);
    assert_eq!(note(&mut watch, WELL, 1).hangs, 1, "each loss is excused once");
    watch.excuse(9);
    assert_eq!(note(&mut watch, WELL, 1).hangs, 0);
}

#[test]
fn a_factor_of_zero_is_never() {
    assert_eq!(note(&mut watch(0), Check::Silent, 1_000_000).hangs, 0);
}

#[test]
fn short_limits_still_take_three_checks() {
    let limits = Limits { stuck_step_timeout: SECOND, hung_shard_factor: 1, ..Limits::default() };
    let mut watch = HangWatch::new(&ServerLimits::from(limits));
    let hangs = [1, 2, 3].map(|_| watch.note(Check::Silent, 2 * SECOND).hangs);
    assert_eq!(hangs, [0, 0, 1]);
}
