//! When requests are sent.

use std::time::Duration;

use crate::random::Random;

/// What sends requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Load {
    /// So many clients, each of which sends its next request when the one before is answered.
    Closed { clients: usize },
    /// Requests at a rate, whether earlier ones are answered or not. Pauses between them have a gamma distribution with
    /// this shape, as `--burstiness` of vLLM: 1 is a Poisson process, infinity a fixed rate.
    Open { rate_per_s: f64, burstiness: f64 },
    /// The times of a trace, so many times as fast.
    Trace { speed: f64 },
}

/// The end of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit {
    /// So many sessions.
    Sessions(u64),
    /// No session starts later than this.
    Time(Duration),
}

/// Returns the times of arrival of an open load, in order.
///
/// For a number of requests they are stretched, as vLLM does, so that the last one comes at that number divided by the
/// rate. For a duration they end with it.
pub fn times(rate_per_s: f64, burstiness: f64, limit: Limit, seed: u64) -> Vec<Duration> {
    let mut random = Random::new(seed);
    let mut gap = || if burstiness.is_finite() { random.gamma(burstiness) } else { 1.0 } / rate_per_s;
    let mut at_s = 0.0;
    let mut next = || {
        at_s += gap();
        at_s
    };
    let times: Vec<f64> = match limit {
        Limit::Sessions(count) => {
            let times: Vec<f64> = (0..count).map(|_| next()).collect();
            let stretch = times.last().map_or(1.0, |last| count as f64 / rate_per_s / last);
            times.into_iter().map(|time| time * stretch).collect()
        }
        Limit::Time(end) => {
            std::iter::from_fn(|| Some(next()).filter(|time| *time < end.as_secs_f64())).collect()
        }
    };
    times.into_iter().map(Duration::from_secs_f64).collect()
}

/// Returns the rates of a sweep between what one client gets and what all get together, as those of GuideLLM: evenly
/// spaced, without the lowest.
pub fn sweep_rates(one_client_per_s: f64, all_per_s: f64, count: usize) -> Vec<f64> {
    let step = (all_per_s - one_client_per_s) / count as f64;
    (1..=count).map(|i| one_client_per_s + step * i as f64).filter(|rate| *rate > 0.0).collect()
}
