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

#[cfg(test)]
mod tests {
    use super::*;

    const START: Duration = Duration::from_secs(1_000);

    fn after_ms(ms: u64) -> Duration {
        START + Duration::from_millis(ms)
    }

    #[test]
    fn a_minutes_worth_goes_at_once_and_comes_back_evenly() {
        let mut bucket = Bucket::new(60, START);
        for _ in 0..60 {
            assert_eq!(bucket.wait_for(1, START), Duration::ZERO);
            bucket.take(1, START);
        }
        assert_eq!((bucket.remaining(START), bucket.wait_for(1, START)), (0, Duration::from_secs(1)));
        assert_eq!(bucket.wait_for(1, after_ms(400)), Duration::from_millis(600));
        assert_eq!((bucket.remaining(after_ms(999)), bucket.remaining(after_ms(1_000))), (0, 1));
        assert_eq!(bucket.full_in(after_ms(1_000)), Duration::from_secs(59));
        assert_eq!(bucket.remaining(after_ms(3_600_000)), 60, "no more than a minute's worth");
    }

    #[test]
    fn who_waits_as_long_as_was_said_is_let_in_and_not_a_nanosecond_earlier() {
        for (per_minute, amount) in
            [(1, 1), (7, 3), (60, 60), (61, 17), (1_000_003, 999_983), (u32::MAX, 1 << 31)]
        {
            let mut bucket = Bucket::new(per_minute, START);
            bucket.take(u64::from(per_minute), START);
            let wait = bucket.wait_for(amount, START);
            let nanosecond = Duration::from_nanos(1);
            assert_eq!(
                bucket.clone().wait_for(amount, START + wait - nanosecond),
                nanosecond,
                "{per_minute}"
            );
            assert_eq!(bucket.wait_for(amount, START + wait), Duration::ZERO, "{per_minute}");
        }
    }

    #[test]
    fn a_debt_is_waited_for() {
        let mut bucket = Bucket::new(100, START);
        bucket.take(350, START);
        assert_eq!((bucket.remaining(START), bucket.clone().remaining(after_ms(149_000))), (0, 0));
        assert_eq!(bucket.wait_for(1, START), Duration::from_millis(150_600));
        assert_eq!(bucket.full_in(START), Duration::from_secs(210));
        bucket.give_back(350, START);
        assert_eq!(bucket.remaining(START), 100);
    }

    #[test]
    fn more_than_it_holds_is_let_in_when_it_is_full() {
        let mut bucket = Bucket::new(100, START);
        assert_eq!(bucket.wait_for(5_000, START), Duration::ZERO);
        bucket.take(5_000, START);
        assert_eq!(bucket.wait_for(5_000, START), Duration::from_secs(50 * 60));
    }

    #[test]
    fn another_rate_keeps_the_share() {
        let mut bucket = Bucket::new(1_000, START);
        bucket.take(750, START);
        bucket.set_rate(100, START);
        assert_eq!((bucket.remaining(START), bucket.per_minute()), (25, 100));
        bucket.take(125, START);
        bucket.set_rate(10, START);
        assert_eq!(bucket.full_in(START), Duration::from_secs(120), "the debt of a minute is one");
    }

    #[test]
    fn over_many_minutes_the_rate_holds_whatever_is_asked_for() {
        let (mut bucket, mut now, mut taken) = (Bucket::new(6_000, START), START, 0);
        let mut state = 9_u64;
        while now < START + Duration::from_secs(3_600) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let amount = state >> 56;
            now += bucket.wait_for(amount, now);
            // Charged after it was let in, as outputs are: up to twice as much.
            bucket.take(amount + (state >> 50 & 255), now);
            taken += amount + (state >> 50 & 255);
        }
        let allowed = 6_000 * 60 + 6_000 + 2 * 255;
        assert!((360_000..=allowed).contains(&taken), "{taken}");
    }

    #[test]
    fn a_clock_that_goes_back_fills_nothing_twice() {
        let mut bucket = Bucket::new(60, START);
        bucket.take(60, START);
        assert_eq!(bucket.remaining(after_ms(5_000)), 5);
        assert_eq!(bucket.remaining(after_ms(2_000)), 5);
        assert_eq!(bucket.remaining(after_ms(6_000)), 6);
    }
}
