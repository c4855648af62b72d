//! Tells the log of restores that were given up, at most once a minute: a disk that hangs must not fill it.

use std::time::Duration;

use tokio::time::Instant;
use trunkline_scheduler::Stats;

/// At most one line in this time.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// What the log knows.
#[derive(Debug, Default)]
pub(super) struct LateRestores {
    num_told: u64,
    told_at: Option<Instant>,
}

impl LateRestores {
    /// How many to tell of now, if any.
    pub(super) fn take(&mut self, stats: &Stats, now: Instant) -> Option<u64> {
        let num_new = stats.restores_given_up - self.num_told;
        if num_new == 0 || self.told_at.is_some_and(|at| now - at < LINE_INTERVAL) {
            return None;
        }
        (self.num_told, self.told_at) = (stats.restores_given_up, Some(now));
        Some(num_new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_counts_the_rest() {
        let (mut late, begin) = (LateRestores::default(), Instant::now());
        let stats = |restores_given_up| Stats { restores_given_up, ..Stats::default() };
        assert_eq!(late.take(&stats(0), begin), None);
        assert_eq!(late.take(&stats(1), begin), Some(1));
        assert_eq!(late.take(&stats(3), begin + LINE_INTERVAL / 2), None);
        assert_eq!(late.take(&stats(4), begin + LINE_INTERVAL), Some(3));
        assert_eq!(late.take(&stats(4), begin + LINE_INTERVAL * 3), None);
    }
}
