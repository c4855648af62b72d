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
