//! The figures of a run, defined as those of `vllm bench serve`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::client::failure::Kind;
use crate::record::{Measured, Record};

/// Points of [`Figures::itl_quantiles_ms`] but one.
const QUANTILES: usize = 100;

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub mean: f64,
    pub median: f64,
    /// Standard deviation of the population.
    pub std: f64,
    pub p90: f64,
    pub p99: f64,
    pub max: f64,
}

/// The bounds that a good request keeps, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bounds {
    pub ttft: Option<f64>,
    pub tpot: Option<f64>,
    pub e2el: Option<f64>,
}

/// Requests that failed in one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failures {
    pub kind: String,
    pub title: String,
    pub count: u64,
    /// The message of the first one.
    pub example: String,
}

/// The figures of one run. Rates are over the time from its start to its last answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub duration_s: f64,
    pub completed: u64,
    pub failed: u64,
    /// Requests that were open when the run was interrupted.
    pub unfinished: u64,
    pub prompt_tokens: u64,
    pub output_tokens: u64,
    /// Absent if the server does not tell.
    pub cached_tokens: Option<u64>,
    pub requests_per_s: f64,
    pub output_tokens_per_s: f64,
    pub total_tokens_per_s: f64,
    /// It is absent without `--goodput`.
    pub good_requests_per_s: Option<f64>,
    pub peak_concurrency: u64,
    /// Most events with output within a second.
    pub peak_output_tokens_per_s: u64,
    /// Absent, like the others, if no request has such a time.
    pub ttft_ms: Option<Summary>,
    pub tpot_ms: Option<Summary>,
    pub itl_ms: Option<Summary>,
    pub e2el_ms: Option<Summary>,
    /// The 0th to 100th percentile.
    pub itl_quantiles_ms: Vec<f64>,
    pub failures: Vec<Failures>,
    /// Events with output in each second.
    pub output_tokens_by_second: Vec<u64>,
    /// Requests that were open in the middle of each second.
    pub open_by_second: Vec<u64>,
}

impl Figures {
    pub fn new(records: &[Record], duration_s: f64, unfinished: u64, bounds: &Bounds) -> Self {
        let measured: Vec<(f64, &Measured)> =
            records.iter().filter_map(|r| Some((r.sent_s, r.outcome.as_ref().ok()?))).collect();
        let all = |value: &dyn Fn(&Measured) -> Option<f64>| -> Vec<f64> {
            measured.iter().filter_map(|(_, m)| value(m)).collect()
        };
        let sum = |value: &dyn Fn(&Measured) -> u64| measured.iter().map(|(_, m)| value(m)).sum::<u64>();
        let completed = measured.len() as u64;
        let (prompt_tokens, output_tokens) = (sum(&|m| m.prompt_tokens), sum(&|m| m.output_tokens));
        let tells_cached = measured.iter().any(|(_, m)| m.cached_tokens.is_some());
        let good = measured.iter().filter(|(_, m)| bounds.keeps(m)).count();
        let rate = |count: f64| if duration_s > 0.0 { count / duration_s } else { 0.0 };
        let mut itl: Vec<f64> =
            measured.iter().flat_map(|(_, m)| m.itl_s.iter().map(|s| f64::from(*s))).collect();
        itl.sort_by(f64::total_cmp);
        let output_tokens_by_second = output_by_second(&measured);
        Self {
            duration_s,
            completed,
            failed: records.len() as u64 - completed,
            unfinished,
            prompt_tokens,
            output_tokens,
            cached_tokens: tells_cached.then(|| sum(&|m| m.cached_tokens.unwrap_or(0))),
            requests_per_s: rate(completed as f64),
            output_tokens_per_s: rate(output_tokens as f64),
            total_tokens_per_s: rate((prompt_tokens + output_tokens) as f64),
            good_requests_per_s: bounds.any().then(|| rate(good as f64)),
            peak_concurrency: peak_concurrency(&measured),
            peak_output_tokens_per_s: output_tokens_by_second.iter().copied().max().unwrap_or(0),
            ttft_ms: Summary::of(all(&|m| Some(m.ttft_s))),
            tpot_ms: Summary::of(all(&Measured::tpot_s)),
            itl_ms: Summary::of(itl.clone()),
            e2el_ms: Summary::of(all(&|m| Some(m.e2el_s))),
            itl_quantiles_ms: if itl.is_empty() {
                Vec::new()
            } else {
                (0..=QUANTILES).map(|p| percentile(&itl, p as f64) * 1e3).collect()
            },
            failures: failures(records),
            open_by_second: open_by_second(&measured),
            output_tokens_by_second,
        }
    }

    /// Returns the part of the prompts' tokens that were in the server's cache.
    pub fn cached_share(&self) -> Option<f64> {
        let cached = self.cached_tokens? as f64;
        (self.prompt_tokens > 0).then(|| cached / self.prompt_tokens as f64)
    }
}

impl Summary {
    /// Summarises times in seconds; `None` if there are none.
    pub fn of(mut seconds: Vec<f64>) -> Option<Self> {
        seconds.sort_by(f64::total_cmp);
        let max = *seconds.last()?;
        let count = seconds.len() as f64;
        let mean = seconds.iter().sum::<f64>() / count;
        let variance = seconds.iter().map(|s| (s - mean).powi(2)).sum::<f64>() / count;
        Some(Self {
            mean: mean * 1e3,
            median: percentile(&seconds, 50.0) * 1e3,
            std: variance.sqrt() * 1e3,
            p90: percentile(&seconds, 90.0) * 1e3,
            p99: percentile(&seconds, 99.0) * 1e3,
            max: max * 1e3,
        })
    }
}

/// Returns a percentile of one or more sorted numbers: linear between neighbours, as numpy's default.
pub fn percentile(sorted: &[f64], percent: f64) -> f64 {
    let at = percent / 100.0 * (sorted.len() - 1) as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

impl Bounds {
    fn any(&self) -> bool {
        self.ttft.or(self.tpot).or(self.e2el).is_some()
    }

    /// Returns true if a request keeps all bounds; one with a single token has a time per token of 0.
    fn keeps(&self, measured: &Measured) -> bool {
        let within = |bound: Option<f64>, seconds: f64| bound.is_none_or(|bound| seconds * 1e3 <= bound);
        within(self.ttft, measured.ttft_s)
            && within(self.tpot, measured.tpot_s().unwrap_or(0.0))
            && within(self.e2el, measured.e2el_s)
    }
}

fn failures(records: &[Record]) -> Vec<Failures> {
    let mut by_kind: BTreeMap<Kind, (u64, &str)> = BTreeMap::new();
    for failure in records.iter().filter_map(|record| record.outcome.as_ref().err()) {
        by_kind.entry(failure.kind).or_insert((0, &failure.message)).0 += 1;
    }
    let row = |(kind, (count, example)): (Kind, (u64, &str))| Failures {
        kind: kind.name().to_owned(),
        title: kind.title().to_owned(),
        count,
        example: example.to_owned(),
    };
    by_kind.into_iter().map(row).collect()
}

/// Returns the most requests that were open at once; one that ends as another begins was not open beside it.
fn peak_concurrency(measured: &[(f64, &Measured)]) -> u64 {
    let mut changes: Vec<(f64, i64)> =
        measured.iter().flat_map(|(sent, m)| [(*sent, 1), (sent + m.e2el_s, -1)]).collect();
    changes.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let mut open = 0;
    let counts = changes.iter().map(|(_, change)| {
        open += change;
        open
    });
    counts.max().unwrap_or(0) as u64
}

fn output_by_second(measured: &[(f64, &Measured)]) -> Vec<u64> {
    let mut counts = Vec::new();
    for (sent, m) in measured {
        for at in m.events_s() {
            let second = (sent + at).max(0.0) as usize;
            if counts.len() <= second {
                counts.resize(second + 1, 0);
            }
            counts[second] += 1;
        }
    }
    counts
}

fn open_by_second(measured: &[(f64, &Measured)]) -> Vec<u64> {
    let end = measured.iter().map(|(sent, m)| sent + m.e2el_s).fold(0.0, f64::max);
    let mut changes = vec![0i64; end as usize + 2];
    for (sent, m) in measured {
        changes[(sent + 0.5) as usize] += 1;
        changes[(sent + m.e2el_s + 0.5) as usize] -= 1;
    }
    let mut open = 0;
    let counts = changes.iter().take(end as usize + 1).map(|change| {
        open += change;
        open as u64
    });
    counts.collect()
}
