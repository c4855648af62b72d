//! A circuit breaker: after a failure the store is not asked for a pause, which doubles with each further failure.

use std::time::{Duration, Instant};

use trunkline_store::Troubles;

/// The pause after the first failure and the longest pause.
pub const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

/// Decides from the outcomes of earlier requests whether a store may be asked now.
#[derive(Debug, Default)]
pub struct Breaker {
    paused_until: Option<Instant>,
    /// The pause that the next failure starts.
    pause: Option<Duration>,
    troubles: Troubles,
}

impl Breaker {
    /// Returns the end of the current pause, or `None` if the store may be asked.
    pub fn paused_until(&self, now: Instant) -> Option<Instant> {
        self.paused_until.filter(|until| *until > now)
    }

    pub fn worked(&mut self) {
        (self.paused_until, self.pause) = (None, None);
    }

    /// Starts a pause. Failures during a pause do not lengthen it, because requests in flight fail together.
    pub fn failed(&mut self, failure: &dyn std::error::Error, now: Instant) {
        self.troubles.note(failure);
        if self.paused_until(now).is_some() {
            return;
        }
        let pause = self.pause.unwrap_or(PAUSE.0);
        self.paused_until = Some(now + pause);
        self.pause = Some((pause * 2).min(PAUSE.1));
    }

    /// Records a problem for the log that is not a failure of the store.
    pub fn note(&mut self, failure: &dyn std::error::Error) {
        self.troubles.note(failure);
    }

    /// Returns a line for the log, at most once a minute.
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
