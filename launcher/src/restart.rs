//! Decides when a crashed child is restarted: immediately at first, then after growing pauses, and finally not at all.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Restarts within [`WINDOW`] after which the launcher gives up.
const MAX_RESTARTS: usize = 5;
/// Time for which a crash is counted.
const WINDOW: Duration = Duration::from_secs(60);
/// The most crashes that are remembered. Only excused ones can become so many.
const MAX_CRASHES: usize = 64;
/// The longest time from a crash until it is noticed.
const NOTICE_TIME: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    RestartAfter(Duration),
    /// Do not restart the child: it crashed too often.
    GiveUp {
        ends: usize,
    },
}

/// The recent crashes of one child.
#[derive(Debug)]
pub struct RestartPolicy {
    base_pause: Duration,
    /// The crashes within [`WINDOW`], oldest first; at most [`MAX_CRASHES`].
    crashes: VecDeque<Crash>,
    /// The next crash is excused if it is noticed up to this moment.
    excused_until: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Crash {
    at: Instant,
    /// True if it does not count toward giving up.
    is_excused: bool,
}

impl RestartPolicy {
    pub fn new(base_pause: Duration) -> Self {
        Self { base_pause, crashes: VecDeque::new(), excused_until: None }
    }

    /// Counts a crash at `now` and returns the decision. Excused crashes make the pauses longer, but do not count
    /// toward giving up.
    pub fn crashed(&mut self, now: Instant) -> Verdict {
        while self.crashes.front().is_some_and(|crash| now.duration_since(crash.at) >= WINDOW) {
            self.crashes.pop_front();
        }
        if self.crashes.len() == MAX_CRASHES {
            self.crashes.pop_front();
        }
        let is_excused = self.excused_until.take().is_some_and(|until| now <= until);
        self.crashes.push_back(Crash { at: now, is_excused });
        let ends = self.crashes.iter().filter(|crash| !crash.is_excused).count();
        if ends > MAX_RESTARTS {
            return Verdict::GiveUp { ends };
        }
        match self.crashes.len().min(MAX_RESTARTS) {
            1 => Verdict::RestartAfter(Duration::ZERO),
            crashes => Verdict::RestartAfter(self.base_pause * (1 << (crashes - 2))),
        }
    }

    /// Excuses the last `num_crashes` crashes, because the child is not to blame for them. The last of these may not be
    /// counted yet: another process may have noticed it first.
    pub fn excuse(&mut self, num_crashes: u64, now: Instant) {
        let counted = self.crashes.iter_mut().rev().filter(|crash| !crash.is_excused);
        let mut num_left = num_crashes;
        for (crash, _) in counted.zip(0..num_crashes) {
            crash.is_excused = true;
            num_left -= 1;
        }
        self.excused_until = (num_left > 0).then(|| now + NOTICE_TIME);
    }

    /// Lets the crashes so far count for `time` longer, for which the child hung. So a child that hangs after each
    /// start is given up, too, although a hang takes longer to notice than a crash is counted.
    pub fn hung(&mut self, time: Duration, now: Instant) {
        for crash in &mut self.crashes {
            crash.at = (crash.at + time).min(now);
        }
    }

    /// Returns the time for which a crash is counted, in seconds.
    pub fn window_s() -> u64 {
        WINDOW.as_secs()
    }
}
