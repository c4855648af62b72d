//! Tells the log of restores that were given up, at most once a minute: a disk that hangs must not fill it.

use std::time::Duration;

use tokio::time::Instant;
use trunkline_scheduler::Stats;

/// At most one line in this time.
pub const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// What the log knows.
#[derive(Debug, Default)]
pub struct LateRestores {
    num_told: u64,
    told_at: Option<Instant>,
}

impl LateRestores {
    /// How many to tell of now, if any.
    pub fn take(&mut self, stats: &Stats, now: Instant) -> Option<u64> {
        let num_new = stats.restores_given_up - self.num_told;
        if num_new == 0 || self.told_at.is_some_and(|at| now - at < LINE_INTERVAL) {
            return None;
        }
        (self.num_told, self.told_at) = (stats.restores_given_up, Some(now));
        Some(num_new)
    }
}
