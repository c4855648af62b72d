//! Limits the log lines about restores that were given up, so that a hung disk does not fill the log.

use std::time::Duration;

use tokio::time::Instant;
use trunkline_scheduler::Stats;

/// The least time between two lines.
pub const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// The number of restores that were logged, and the time of the last line.
#[derive(Debug, Default)]
pub struct LateRestores {
    num_told: u64,
    told_at: Option<Instant>,
}

impl LateRestores {
    /// Returns the number of restores to log now, or `None` if there are none or the last line is too recent.
    pub fn take(&mut self, stats: &Stats, now: Instant) -> Option<u64> {
        let num_new = stats.restores_given_up - self.num_told;
        if num_new == 0 || self.told_at.is_some_and(|at| now - at < LINE_INTERVAL) {
            return None;
        }
        (self.num_told, self.told_at) = (stats.restores_given_up, Some(now));
        Some(num_new)
    }
}
