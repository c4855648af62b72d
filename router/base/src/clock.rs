//! The time of day, and the CPU time of threads.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

pub fn unix_s() -> u64 {
    since_1970().as_secs()
}

/// Returns the seconds since 1970, with their fraction.
pub fn unix_seconds() -> f64 {
    since_1970().as_secs_f64()
}

fn since_1970() -> Duration {
    // A clock that is set before 1970 counts as 1970.
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Returns the CPU time of this thread, which does not grow when other load takes the cores.
pub fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}
