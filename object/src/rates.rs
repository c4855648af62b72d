//! What a store was measured to do, and whether asking it is worth its time.

use std::time::Duration;

/// How much one new measurement weighs against all older ones.
const WEIGHT: f64 = 0.2;
/// What is taken for the part of requests that find something, before any has asked.
const FIRST_HIT_RATIO: f64 = 0.5;
/// One of so many requests that are predicted to lose asks all the same, to measure again.
const TRY_EVERY: u32 = 32;

/// A moving average; none before the first measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Average(Option<f64>);

impl Average {
    fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |average| average + WEIGHT * (value - average)));
    }
}

/// Moving averages of downloads.
#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Seconds to the first answer of a download, a miss included.
    latency: Average,
    /// Seconds a block, several under way at once.
    block: Average,
    /// Part of downloads that found something.
    hit_ratio: Average,
    num_declined: u32,
}

impl Rates {
    /// A download found `num_blocks`: its first answer came after `first`, the last after `total`.
    pub fn add(&mut self, num_blocks: usize, first: Duration, total: Duration) {
        self.latency.add(first.as_secs_f64());
        self.hit_ratio.add(f64::from(u8::from(num_blocks > 0)));
        if num_blocks > 0 {
            self.block.add(total.as_secs_f64() / num_blocks as f64);
        }
    }

    /// No answer came in this time.
    pub fn add_silence(&mut self, waited: Duration) {
        self.latency.add(waited.as_secs_f64());
        self.block.add(waited.as_secs_f64());
    }

    /// Predicted time to get so many blocks; none before anything was measured.
    pub fn predict(&self, num_blocks: usize) -> Option<Duration> {
        let seconds = (num_blocks as f64 * self.block.0?).max(self.latency.0?);
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// Whether asking for so many blocks, which take `compute` to compute, is predicted to win: what a hit spares, by
    /// how often there is one, against what a miss costs. What was not measured yet is tried.
    pub fn is_worth_asking(&mut self, num_blocks: usize, compute: Option<Duration>) -> bool {
        let (Some(download), Some(compute), Some(latency)) =
            (self.predict(num_blocks), compute, self.latency.0)
        else {
            return true;
        };
        let hit_ratio = self.hit_ratio.0.unwrap_or(FIRST_HIT_RATIO);
        let spared = compute.as_secs_f64() - download.as_secs_f64();
        let is_won = hit_ratio * spared > (1.0 - hit_ratio) * latency.min(compute.as_secs_f64());
        let is_tried = is_won || self.num_declined + 1 >= TRY_EVERY;
        self.num_declined = if is_tried { 0 } else { self.num_declined + 1 };
        is_tried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn what_is_not_measured_is_tried() {
        let mut rates = Rates::default();
        assert!(rates.is_worth_asking(4, Some(MS)));
        assert_eq!(rates.predict(4), None);
        rates.add(4, 10 * MS, 40 * MS);
        assert!(rates.is_worth_asking(4, None));
        assert_eq!(rates.predict(8), Some(80 * MS));
        assert_eq!(rates.predict(0), Some(10 * MS));
    }

    #[test]
    fn a_slow_store_is_left_alone_but_tried_again() {
        let mut rates = Rates::default();
        rates.add(10, 20 * MS, 100 * MS);
        assert!(rates.is_worth_asking(10, Some(200 * MS)));
        rates.add_silence(5000 * MS);
        let num_tries = (0..10 * TRY_EVERY).filter(|_| rates.is_worth_asking(10, Some(200 * MS))).count();
        assert_eq!(num_tries, 10);
        assert!(rates.is_worth_asking(10, Some(60_000 * MS)), "a slow download beats a slower computation");
    }

    #[test]
    fn where_nothing_is_ever_found_little_is_risked() {
        let mut rates = Rates::default();
        rates.add(10, 20 * MS, 100 * MS);
        (0..30).for_each(|_| rates.add(0, 20 * MS, 20 * MS));
        assert!(!rates.is_worth_asking(10, Some(200 * MS)));
        assert!(rates.is_worth_asking(1000, Some(100_000 * MS)), "a long history is worth a short look");
    }
}
