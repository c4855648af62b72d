use std::time::Duration;

use tokio::time::Instant;
use trunkline_base::error::ApiError;
use trunkline_base::limits::{BODY_GRACE, BODY_TIMEOUT, MIN_BODY_RATE, Timeouts};
use trunkline_http::pace::Pace;

const SECOND: Duration = Duration::from_secs(1);
const RATE: usize = MIN_BODY_RATE as usize;

/// Sends `first` bytes at once, and then `num_bytes` after each pause. Returns the time after which the body is late,
/// and the error.
fn ends_after(first: usize, pause: Duration, num_bytes: usize) -> (Duration, ApiError) {
    let begin = Instant::now();
    let mut pace = Pace::new(Timeouts::default(), begin);
    pace.arrived(first, begin);
    let mut now = begin + pause;
    while now <= pace.due() {
        pace.arrived(num_bytes, now);
        now += pause;
    }
    (pace.due() - begin, pace.late())
}

fn is_too_slow(error: &ApiError) -> bool {
    matches!(error, ApiError::BodyTooSlow { min_rate: MIN_BODY_RATE, grace_s: 10 })
        && (error.code(), error.status().as_u16()) == ("body_timeout", 408)
}

#[test]
fn a_body_that_stalls_is_late_after_the_grace_however_much_has_arrived() {
    for first in [0, 1, 100 << 10, 8 << 20] {
        let (elapsed, error) = ends_after(first, BODY_TIMEOUT, 0);
        assert_eq!((elapsed, is_too_slow(&error)), (BODY_GRACE, true), "{first}");
    }
}

#[test]
fn a_body_may_take_its_whole_time_at_the_least_rate() {
    for num_bytes in [RATE, RATE + 100, 10 * RATE] {
        let (elapsed, error) = ends_after(0, SECOND, num_bytes);
        assert_eq!(elapsed, BODY_TIMEOUT, "{num_bytes}");
        assert!(matches!(error, ApiError::BodyTimeout { limit_s: 30 }), "{error}");
    }
    // A pause that is shorter than the grace is made up for afterwards.
    let (elapsed, _) = ends_after(0, BODY_GRACE - SECOND / 10, 100 << 10);
    assert_eq!(elapsed, BODY_TIMEOUT);
}

#[test]
fn a_body_below_the_least_rate_is_late_even_if_its_first_part_came_at_once() {
    for first in [0, 8 << 10, 8 << 20] {
        // Half of the rate uses up the grace at half of its speed.
        let (elapsed, error) = ends_after(first, SECOND, RATE / 2);
        assert!(is_too_slow(&error), "{first}: {error}");
        assert!((2 * BODY_GRACE - SECOND..2 * BODY_GRACE).contains(&elapsed), "{first}: {elapsed:?}");
        // A byte a second is hardly more than nothing.
        let (elapsed, error) = ends_after(first, SECOND, 1);
        assert!(is_too_slow(&error) && elapsed < BODY_GRACE + SECOND / 10, "{first}: {elapsed:?}");
    }
}
