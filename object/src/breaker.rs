//! Leaves a store alone that fails: for a moment at first, then longer.

use std::time::{Duration, Instant};

use trunkline_store::Troubles;

/// Pause after a first failure, and the longest: it doubles.
pub const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Whether to ask a store, by what became of earlier questions.
#[derive(Debug, Default)]
pub struct Breaker {
    paused_until: Option<Instant>,
    /// Of the next failure.
    pause: Option<Duration>,
    troubles: Troubles,
}

impl Breaker {
    /// Until when the store is left alone; none: it may be asked.
    pub fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    /// The store did what it was asked, or said that it has nothing of that name.
    pub fn worked(&mut self) {
        (self.paused_until, self.pause) = (None, None);
    }

    /// It did not. What fails together, during a pause, is one failure.
    pub fn failed(&mut self, failure: &dyn std::error::Error, now: Instant) {
        self.troubles.note(failure);
        if self.paused_until(now).is_some() {
            return;
        }
        let pause = self.pause.unwrap_or(PAUSE.0);
        self.paused_until = Some(now + pause);
        self.pause = Some((pause * 2).min(PAUSE.1));
    }

    /// Something is wrong that is no failure of the store.
    pub fn note(&mut self, failure: &dyn std::error::Error) {
        self.troubles.note(failure);
    }

    /// A line for the log, at most one a minute.
    pub fn take_line(&mut self, now: Instant) -> Option<String> {
        self.troubles.take_line(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_until_something_works() {
        let (mut breaker, mut now) = (Breaker::default(), Instant::now());
        let failure = std::io::Error::other("gone");
        let mut pauses = Vec::new();
        for _ in 0..12 {
            assert_eq!(breaker.paused_until(now), None);
            breaker.failed(&failure, now);
            breaker.failed(&failure, now);
            let until = breaker.paused_until(now).unwrap();
            pauses.push((until - now).as_secs());
            now = until;
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        breaker.worked();
        breaker.failed(&failure, now);
        assert_eq!(breaker.paused_until(now), Some(now + PAUSE.0));
        assert_eq!(breaker.take_line(now).unwrap(), "gone, and 24 more failures before it");
        assert_eq!(breaker.take_line(now), None);
    }
}
