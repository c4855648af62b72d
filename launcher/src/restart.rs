//! Decides when a crashed child is restarted: immediately at first, then after growing pauses, and finally not at all.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Restarts within [`WINDOW`] after which the launcher gives up.
const MAX_RESTARTS: usize = 5;
/// Time for which a crash is counted.
const WINDOW: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    RestartAfter(Duration),
    /// Do not restart the child: it crashed too often.
    GiveUp {
        ends: usize,
    },
}

/// The recent crashes of one child, at most [`MAX_RESTARTS`] + 1.
#[derive(Debug)]
pub struct RestartPolicy {
    base_pause: Duration,
    crashes: VecDeque<Instant>,
}

impl RestartPolicy {
    pub fn new(base_pause: Duration) -> Self {
        Self { base_pause, crashes: VecDeque::new() }
    }

    /// Counts a crash at `now` and returns the decision.
    pub fn crashed(&mut self, now: Instant) -> Verdict {
        while self.crashes.front().is_some_and(|crash| now.duration_since(*crash) >= WINDOW) {
            self.crashes.pop_front();
        }
        self.crashes.push_back(now);
        match self.crashes.len() {
            1 => Verdict::RestartAfter(Duration::ZERO),
            crashes if crashes <= MAX_RESTARTS => {
                Verdict::RestartAfter(self.base_pause * (1 << (crashes - 2)))
            }
            ends => Verdict::GiveUp { ends },
        }
    }

    /// Returns the time for which a crash is counted, in seconds.
    pub fn window_s() -> u64 {
        WINDOW.as_secs()
    }
}
