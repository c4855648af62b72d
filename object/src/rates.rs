//! Measures a store's downloads and predicts whether another one saves time.

use std::time::Duration;

/// The weight of a new measurement in the moving averages.
const WEIGHT: f64 = 0.2;
/// The hit ratio that is assumed before the first measurement.
const FIRST_HIT_RATIO: f64 = 0.5;
/// One of this many requests that are predicted to lose time asks all the same, so that the averages stay current.
const TRY_EVERY: u32 = 32;

/// An exponential moving average; `None` before the first measurement.
#[derive(Clone, Copy, Debug, Default)]
struct Average(Option<f64>);

impl Average {
    fn add(&mut self, value: f64) {
        self.0 = Some(self.0.map_or(value, |average| average + WEIGHT * (value - average)));
    }
}

#[derive(Clone, Debug, Default)]
pub struct Rates {
    /// Seconds to the first answer of a download, a miss included.
    latency: Average,
    /// Seconds per block while several downloads are in flight.
    block: Average,
    /// The share of downloads that found at least one block.
    hit_ratio: Average,
    num_declined: u32,
}

impl Rates {
    /// Records a download of `num_blocks` whose first answer came after `first` and whose last came after `total`.
    pub fn add(&mut self, num_blocks: usize, first: Duration, total: Duration) {
        self.latency.add(first.as_secs_f64());
        self.hit_ratio.add(f64::from(u8::from(num_blocks > 0)));
        if num_blocks > 0 {
            self.block.add(total.as_secs_f64() / num_blocks as f64);
        }
    }

    /// Records a download that was given up after `waited` without an answer.
    pub fn add_silence(&mut self, waited: Duration) {
        self.latency.add(waited.as_secs_f64());
        self.block.add(waited.as_secs_f64());
    }

    /// Predicts the time to get `num_blocks`. Returns `None` before the first measurement.
    pub fn predict(&self, num_blocks: usize) -> Option<Duration> {
        let seconds = (num_blocks as f64 * self.block.0?).max(self.latency.0?);
        Some(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
    }

    /// Returns true if asking for `num_blocks`, which take `compute` to compute, is predicted to save time: the time
    /// that a hit saves, weighted by the hit ratio, exceeds the time that a miss costs. Returns true if nothing was
    /// measured.
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
