//! A token bucket on the caller's clock. It starts full, is filled at a constant rate, and may be overdrawn.
//!
//! Taking more than the bucket contains leaves a debt, and all callers wait until it is filled again. This allows for
//! amounts that are not known in advance, such as the length of an output: they are taken when they are known, and the
//! rate still holds over several minutes. The arithmetic is exact, so a caller that waits for the returned time is
//! admitted.

use std::time::Duration;

/// The time in which an empty bucket becomes full, in nanoseconds.
const MINUTE_NS: i128 = 60_000_000_000;

/// A token bucket whose capacity is the amount of one minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// The rate, which is also the capacity; at least 1.
    per_minute: i128,
    /// The contents, in units of 1 / `MINUTE_NS`, so that `per_minute` units are added each nanosecond. Negative in
    /// debt.
    level: i128,
    /// The time for which `level` was computed.
    at: Duration,
}

impl Bucket {
    /// Creates a full bucket. `now` is the time since an arbitrary point that is the same for all calls.
    pub fn new(per_minute: u32, now: Duration) -> Self {
        let per_minute = i128::from(per_minute.max(1));
        Self { per_minute, level: per_minute * MINUTE_NS, at: now }
    }

    /// Changes the rate. Contents or debt stay the same in proportion to the capacity.
    pub fn set_rate(&mut self, per_minute: u32, now: Duration) {
        self.fill(now);
        let per_minute = i128::from(per_minute.max(1));
        self.level = self.level / self.per_minute * per_minute;
        self.per_minute = per_minute;
    }

    pub fn per_minute(&self) -> u64 {
        self.per_minute as u64
    }

    /// Returns the time until `amount` can be taken, or zero if it can be taken now. An amount above the capacity can
    /// be taken when the bucket is full.
    pub fn wait_for(&mut self, amount: u64, now: Duration) -> Duration {
        self.fill(now);
        let wanted = i128::from(amount).min(self.per_minute) * MINUTE_NS;
        self.time_to_fill(wanted - self.level)
    }

    /// Takes `amount`, even if that leaves a debt.
    pub fn take(&mut self, amount: u64, now: Duration) {
        self.fill(now);
        self.level -= i128::from(amount) * MINUTE_NS;
    }

    /// Returns an amount that was taken but not used.
    pub fn give_back(&mut self, amount: u64, now: Duration) {
        self.fill(now);
        self.level = (self.level + i128::from(amount) * MINUTE_NS).min(self.per_minute * MINUTE_NS);
    }

    /// Returns the amount that can be taken now, rounded down; 0 in debt.
    pub fn remaining(&mut self, now: Duration) -> u64 {
        self.fill(now);
        u64::try_from(self.level / MINUTE_NS).unwrap_or(0)
    }

    /// Returns the time until the bucket is full if nothing is taken.
    pub fn full_in(&mut self, now: Duration) -> Duration {
        self.fill(now);
        self.time_to_fill(self.per_minute * MINUTE_NS - self.level)
    }

    fn fill(&mut self, now: Duration) {
        let ns = now.saturating_sub(self.at).as_nanos().cast_signed();
        // Saturating is correct, because after such a time any debt is repaid and the bucket is full.
        let filled = self.level.saturating_add(ns.saturating_mul(self.per_minute));
        self.level = filled.min(self.per_minute * MINUTE_NS);
        self.at = self.at.max(now);
    }

    fn time_to_fill(&self, parts: i128) -> Duration {
        let ns = (parts.max(0) + self.per_minute - 1) / self.per_minute;
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}
