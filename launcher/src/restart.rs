//! When to start a crashed child again: at once, then ever later, and not at all when it happens too often.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Restarts within [`WINDOW`] before the launcher gives up.
const MAX_RESTARTS: usize = 5;
/// How long a crash counts.
const WINDOW: Duration = Duration::from_secs(60);

/// What to do about a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Start it again after this pause.
    RestartAfter(Duration),
    /// It crashed `ends` times within the window.
    GiveUp {
        /// Crashes within the window, this one included.
        ends: usize,
    },
}

/// The crashes of one child that still count. At most [`MAX_RESTARTS`] + 1 of them.
#[derive(Debug)]
pub struct RestartPolicy {
    base_pause: Duration,
    crashes: VecDeque<Instant>,
}

impl RestartPolicy {
    /// A policy whose first pause is `base_pause`.
    pub fn new(base_pause: Duration) -> Self {
        Self { base_pause, crashes: VecDeque::new() }
    }

    /// Counts a crash at `now` and says what to do.
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

    /// How long a crash counts, in seconds.
    pub fn window_s() -> u64 {
        WINDOW.as_secs()
    }
}
