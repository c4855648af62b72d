//! A token bucket on a clock that the caller holds: it begins full, is filled up evenly, and may be overdrawn.
//!
//! Whoever takes more than is there leaves a debt, and everybody waits until that is filled up. So what is not known
//! before it is used (the length of an output) is charged as it comes, and over minutes the rate holds all the same.
//! All arithmetic is exact: who waits as long as was said is let in.

use std::time::Duration;

/// In so many nanoseconds a bucket is filled once.
const MINUTE_NS: i128 = 60_000_000_000;

/// So much a minute, at most one minute's worth at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// What is filled up in a minute, and the most that it holds; at least 1.
    per_minute: i128,
    /// What is in it, in parts of which `MINUTE_NS` make one: `per_minute` of them come in a nanosecond.
    level: i128,
    /// As of then.
    at: Duration,
}

impl Bucket {
    /// A full one. `now` is the time since some beginning, the same for all calls.
    pub fn new(per_minute: u32, now: Duration) -> Self {
        let per_minute = i128::from(per_minute.max(1));
        Self { per_minute, level: per_minute * MINUTE_NS, at: now }
    }

    /// Another rate from now on. The bucket is as full as it was, or as deep in debt, by its share.
    pub fn set_rate(&mut self, per_minute: u32, now: Duration) {
        self.fill(now);
        let per_minute = i128::from(per_minute.max(1));
        self.level = self.level / self.per_minute * per_minute;
        self.per_minute = per_minute;
    }

    /// What comes in a minute.
    pub fn per_minute(&self) -> u64 {
        self.per_minute as u64
    }

    /// How long until `amount` can be taken; zero if it can be now. More than the bucket holds can be taken when it is
    /// full.
    pub fn wait_for(&mut self, amount: u64, now: Duration) -> Duration {
        self.fill(now);
        let wanted = i128::from(amount).min(self.per_minute) * MINUTE_NS;
        self.time_to_fill(wanted - self.level)
    }

    /// Takes it, whether it is there or not.
    pub fn take(&mut self, amount: u64, now: Duration) {
        self.fill(now);
        self.level -= i128::from(amount) * MINUTE_NS;
    }

    /// Gives back what was taken in vain.
    pub fn give_back(&mut self, amount: u64, now: Duration) {
        self.fill(now);
        self.level = (self.level + i128::from(amount) * MINUTE_NS).min(self.per_minute * MINUTE_NS);
    }

    /// What can be taken now, in whole units; 0 in debt.
    pub fn remaining(&mut self, now: Duration) -> u64 {
        self.fill(now);
        u64::try_from(self.level / MINUTE_NS).unwrap_or(0)
    }

    /// How long until it is full if nobody takes anything.
    pub fn full_in(&mut self, now: Duration) -> Duration {
        self.fill(now);
        self.time_to_fill(self.per_minute * MINUTE_NS - self.level)
    }

    fn fill(&mut self, now: Duration) {
        let ns = now.saturating_sub(self.at).as_nanos().cast_signed();
        // Longer than it takes to pay any debt that was ever made is as good as for ever.
        let filled = self.level.saturating_add(ns.saturating_mul(self.per_minute));
        self.level = filled.min(self.per_minute * MINUTE_NS);
        self.at = self.at.max(now);
    }

    fn time_to_fill(&self, parts: i128) -> Duration {
        let ns = (parts.max(0) + self.per_minute - 1) / self.per_minute;
        Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX))
    }
}
