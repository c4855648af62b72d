use std::time::{Duration, Instant};

use trunkline_launcher::pace::Pace;
use trunkline_launcher::restart::{RestartPolicy, Verdict};

#[test]
fn first_at_once_then_ever_later_then_never() {
    let (mut policy, now) = (RestartPolicy::new(Pace::default().base_pause), Instant::now());
    let pauses: Vec<_> = (0..6).map(|_| policy.crashed(now)).collect();
    let after = |ms| Verdict::RestartAfter(Duration::from_millis(ms));
    assert_eq!(
        pauses,
        [after(0), after(100), after(200), after(400), after(800), Verdict::GiveUp { ends: 6 }]
    );
}

#[test]
fn hangs_are_counted_however_long_they_take() {
    let (mut policy, mut now) = (RestartPolicy::new(Pace::default().base_pause), Instant::now());
    let hour = Duration::from_secs(3600);
    let verdicts = [1, 2, 3, 4, 5, 6].map(|_| {
        now += hour;
        policy.hung(hour, now);
        policy.crashed(now)
    });
    assert_eq!(verdicts[5], Verdict::GiveUp { ends: 6 });
    assert!(verdicts[..5].iter().all(|verdict| matches!(verdict, Verdict::RestartAfter(_))), "{verdicts:?}");
}

#[test]
fn excused_crashes_lengthen_the_pause_and_do_not_count() {
    let (mut policy, now) = (RestartPolicy::new(Pace::default().base_pause), Instant::now());
    let mut pauses = Vec::new();
    for _ in 0..200 {
        pauses.push(policy.crashed(now));
        pauses.push(policy.crashed(now));
        policy.excuse(2, now);
    }
    assert!(pauses[5..].iter().all(|pause| *pause == Verdict::RestartAfter(Duration::from_millis(800))));
    let counted: Vec<_> = (0..6).map(|_| policy.crashed(now)).collect();
    assert!(counted[..5].iter().all(|verdict| matches!(verdict, Verdict::RestartAfter(_))), "{counted:?}");
    assert_eq!(counted[5], Verdict::GiveUp { ends: 6 });
}

#[test]
fn an_excuse_may_come_before_the_last_crash_is_noticed() {
    let (mut policy, now) = (RestartPolicy::new(Pace::default().base_pause), Instant::now());
    for _ in 0..20 {
        policy.crashed(now);
        policy.excuse(2, now);
        let verdict = policy.crashed(now + Duration::from_secs(1));
        assert!(matches!(verdict, Verdict::RestartAfter(_)), "{verdict:?}");
    }
    // An excuse for a crash that never came is void after a moment, and is for one crash only.
    policy.excuse(9, now);
    let later = now + Duration::from_secs(10);
    let verdicts: Vec<_> = (0..6).map(|_| policy.crashed(later)).collect();
    assert_eq!(verdicts[5], Verdict::GiveUp { ends: 6 });
    let mut policy = RestartPolicy::new(Pace::default().base_pause);
    policy.excuse(9, now);
    let verdicts: Vec<_> = (0..7).map(|_| policy.crashed(now)).collect();
    assert_eq!(verdicts[6], Verdict::GiveUp { ends: 6 });
}

#[test]
fn crashes_are_forgotten_at_the_end_of_the_window() {
    let window = Duration::from_secs(RestartPolicy::window_s());
    let (mut policy, start) = (RestartPolicy::new(Pace::default().base_pause), Instant::now());
    for _ in 0..5 {
        policy.crashed(start);
    }
    assert_eq!(policy.crashed(start + window), Verdict::RestartAfter(Duration::ZERO));
    for seconds in (0..1000).step_by(15) {
        let verdict = policy.crashed(start + window * 2 + Duration::from_secs(seconds));
        assert!(matches!(verdict, Verdict::RestartAfter(_)), "one crash every 15 s is not a loop");
    }
}
