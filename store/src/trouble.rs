//! Counts and failures of transfers, for metrics and logs. Failures are rate-limited, because a full disk must not fill
//! the log as well.

use std::time::{Duration, Instant};

/// The shortest time between two log lines.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// Numbers of blocks since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub stored: u64,
    /// Blocks that were not written because the disk refused or the queue was full.
    pub not_stored: u64,
    pub restored: u64,
    /// Blocks that were missing, damaged or unreadable. The blocks behind them in the same restore are not counted.
    pub not_restored: u64,
}

/// Failures that have not been logged yet.
#[derive(Debug, Default)]
pub struct Troubles {
    num_untold: u64,
    last: String,
    told_at: Option<Instant>,
}

impl Troubles {
    pub fn note(&mut self, failure: &dyn std::error::Error) {
        self.num_untold += 1;
        self.last = failure.to_string();
    }

    /// Returns a log line if there were failures and the last line is older than [`LINE_INTERVAL`].
    pub fn take_line(&mut self, now: Instant) -> Option<String> {
        if self.num_untold == 0 || self.told_at.is_some_and(|at| now.duration_since(at) < LINE_INTERVAL) {
            return None;
        }
        self.told_at = Some(now);
        let num_others = std::mem::take(&mut self.num_untold) - 1;
        let last = std::mem::take(&mut self.last);
        Some(match num_others {
            0 => last,
            1 => format!("{last}, and 1 more failure before it"),
            _ => format!("{last}, and {num_others} more failures before it"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_minute_counts_the_rest() {
        let (mut troubles, begin) = (Troubles::default(), Instant::now());
        let error = |text: &str| std::io::Error::other(text.to_owned());
        assert_eq!(troubles.take_line(begin), None);
        troubles.note(&error("a"));
        assert_eq!(troubles.take_line(begin).unwrap(), "a");
        for text in ["b", "c", "d"] {
            troubles.note(&error(text));
        }
        assert_eq!(troubles.take_line(begin + LINE_INTERVAL / 2), None);
        let line = troubles.take_line(begin + LINE_INTERVAL);
        assert_eq!(line.unwrap(), "d, and 2 more failures before it");
        troubles.note(&error("e"));
        troubles.note(&error("f"));
        let line = troubles.take_line(begin + LINE_INTERVAL * 2);
        assert_eq!(line.unwrap(), "f, and 1 more failure before it");
        assert_eq!(troubles.take_line(begin + LINE_INTERVAL * 3), None);
    }
}
