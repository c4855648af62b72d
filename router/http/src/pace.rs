//! The time in which a body must arrive.
//!
//! Bytes that arrive pay for time at [`MIN_BODY_RATE`], but never for more than the grace. A client that sends all but
//! the last byte at once therefore does not hold its memory any longer.

use std::time::Duration;

use tokio::time::Instant;

use trunkline_base::error::ApiError;
use trunkline_base::limits::{MIN_BODY_RATE, Timeouts};

/// The time that one body has left, on the caller's clock.
#[derive(Debug)]
pub struct Pace {
    limits: Timeouts,
    /// The end of the time for the whole body.
    end: Instant,
    /// The time for which the bytes so far and the grace suffice.
    paid_until: Instant,
}

impl Pace {
    pub fn new(limits: Timeouts, now: Instant) -> Self {
        Self { limits, end: now + limits.body, paid_until: now + limits.body_grace }
    }

    /// Returns the time at which the next bytes, or the end of the body, are due.
    pub fn due(&self) -> Instant {
        self.end.min(self.paid_until)
    }

    /// Notes bytes that have arrived.
    pub fn arrived(&mut self, num_bytes: usize, now: Instant) {
        let paid = Duration::from_secs_f64(num_bytes as f64 / f64::from(MIN_BODY_RATE));
        self.paid_until = (self.paid_until + paid).min(now + self.limits.body_grace);
    }

    /// Returns the error for a body whose next bytes were not there when they were due.
    pub fn late(&self) -> ApiError {
        let Timeouts { body, body_grace, .. } = self.limits;
        if self.end <= self.paid_until {
            ApiError::BodyTimeout { limit_s: body.as_secs() }
        } else {
            ApiError::BodyTooSlow { min_rate: MIN_BODY_RATE, grace_s: body_grace.as_secs() }
        }
    }
}
