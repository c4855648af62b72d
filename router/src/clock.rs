//! The time of day.

use std::time::{SystemTime, UNIX_EPOCH};

pub fn unix_s() -> u64 {
    since_1970().as_secs()
}

/// Returns the seconds since 1970, with their fraction.
pub fn unix_seconds() -> f64 {
    since_1970().as_secs_f64()
}

fn since_1970() -> std::time::Duration {
    // A clock that is set before 1970 counts as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
